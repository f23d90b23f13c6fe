//! W1, W2 and W4 in Burn, on its `flex` backend.
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{
    Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::{gelu, relu, softmax};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};

include!("../../harness.rs");

fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).init(device)
}

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
    head: Linear,
}

impl Mlp {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = relu(self.first.forward(x));
        self.head.forward(relu(self.second.forward(x)))
    }
}

#[derive(Module, Debug)]
struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    hidden: Linear,
    head: Linear,
}

impl Cnn {
    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(relu(self.conv1.forward(x)));
        let x = relu(self.conv2.forward(x)).flatten::<2>(1, 3);
        self.head.forward(relu(self.hidden.forward(x)))
    }
}

const WIDTH: usize = 128;
const HEADS: usize = 4;
const TIME: usize = 128;
const LETTERS: usize = 65;

#[derive(Module, Debug)]
struct Block {
    project: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
}

impl Block {
    fn new(device: &Device) -> Block {
        let norm = || LayerNormConfig::new(WIDTH).init(device);
        Block {
            project: linear(WIDTH, 3 * WIDTH, device),
            out: linear(WIDTH, WIDTH, device),
            up: linear(WIDTH, 4 * WIDTH, device),
            down: linear(4 * WIDTH, WIDTH, device),
            norm1: norm(),
            norm2: norm(),
        }
    }

    fn forward(&self, x: Tensor<3>, mask: &Tensor<4>) -> Tensor<3> {
        let [batch, time, width] = x.dims();
        let packed = self.project.forward(self.norm1.forward(x.clone()));
        let part = |i: usize| {
            let columns = i * width..(i + 1) * width;
            let part = packed.clone().slice([0..batch, 0..time, columns]);
            part.reshape([batch, time, HEADS, width / HEADS]).swap_dims(1, 2)
        };
        let scale = ((width / HEADS) as f32).sqrt();
        let scores = part(0).matmul(part(1).transpose()).div_scalar(scale) + mask.clone();
        let mixed = softmax(scores, 3).matmul(part(2)).swap_dims(1, 2);
        let x = x + self.out.forward(mixed.reshape([batch, time, width]));
        let hidden = gelu(self.up.forward(self.norm2.forward(x.clone())));
        x + self.down.forward(hidden)
    }
}

#[derive(Module, Debug)]
struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    fn forward(&self, x: Tensor<2, Int>, places: Tensor<2, Int>, mask: &Tensor<4>) -> Tensor<2> {
        let mut x = self.tokens.forward(x) + self.positions.forward(places);
        for block in &self.blocks {
            x = block.forward(x, mask);
        }
        self.head.forward(self.norm.forward(x)).flatten::<2>(0, 1)
    }
}

fn integers<const D: usize>(count: usize, end: u64, shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    let data: Vec<i64> = indices(count, end).map(|n| n as i64).collect();
    Tensor::from_data(TensorData::new(data, shape), device)
}

fn train<M: Module>(
    arguments: &Arguments,
    model: M,
    forward: impl Fn(&M) -> Tensor<2>,
    classes: Tensor<1, Int>,
    device: &Device,
) {
    let mut optimizer = AdamConfig::new().with_epsilon(1e-8).init();
    let cross_entropy = CrossEntropyLossConfig::new().init(device);
    let parameters = model.num_params();
    let mut kept = Some(model);
    measure("burn", arguments, parameters, || {
        let model = kept.take().expect("the model of the step before");
        let loss = cross_entropy.forward(forward(&model), classes.clone());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        kept = Some(optimizer.step(1e-3, model, grads));
        device.sync().expect("a step that ends");
    });
}

fn main() {
    let arguments = arguments();
    let device = Device::flex().autodiff();
    let normal = Distribution::Normal(0.0, 1.0);
    match arguments.name.as_str() {
        "W1" => {
            let model = Mlp {
                first: linear(784, 512, &device),
                second: linear(512, 512, &device),
                head: linear(512, 10, &device),
            };
            let x = Tensor::<2>::random([128, 784], normal, &device);
            let y = integers(128, 10, [128], &device);
            train(&arguments, model, |m| m.forward(x.clone()), y, &device);
        }
        "W2" => {
            let conv = |inputs| {
                let config = Conv2dConfig::new([inputs, 64], [3, 3]);
                config.with_padding(PaddingConfig2d::Valid).init(&device)
            };
            let model = Cnn {
                conv1: conv(1),
                conv2: conv(64),
                pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
                hidden: linear(7744, 64, &device),
                head: linear(64, 10, &device),
            };
            let x = Tensor::<4>::random([64, 1, 28, 28], normal, &device);
            let y = integers(64, 10, [64], &device);
            train(&arguments, model, |m| m.forward(x.clone()), y, &device);
        }
        "W4" => {
            let model = Gpt {
                tokens: EmbeddingConfig::new(LETTERS, WIDTH).init(&device),
                positions: EmbeddingConfig::new(TIME, WIDTH).init(&device),
                blocks: (0..4).map(|_| Block::new(&device)).collect(),
                norm: LayerNormConfig::new(WIDTH).init(&device),
                head: linear(WIDTH, LETTERS, &device),
            };
            let rows = 16 * TIME;
            let x = integers(rows, LETTERS as u64, [16, TIME], &device);
            let y = integers(rows, LETTERS as u64, [rows], &device);
            let places: Vec<i64> = (0..TIME as i64).collect();
            let places = Tensor::<2, Int>::from_data(TensorData::new(places, [1, TIME]), &device);
            let hidden = |i: usize| if i % TIME > i / TIME { -1e9f32 } else { 0.0 };
            let mask: Vec<f32> = (0..TIME * TIME).map(hidden).collect();
            let mask = Tensor::<4>::from_data(TensorData::new(mask, [1, 1, TIME, TIME]), &device);
            let forward = |m: &Gpt| m.forward(x.clone(), places.clone(), &mask);
            train(&arguments, model, forward, y, &device);
        }
        other => panic!("this peer has W1, W2 and W4, not {other}"),
    }
}
