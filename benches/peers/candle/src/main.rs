//! W1, W2 and W4 in candle. Its fused LayerNorm and softmax have no backward pass, so the composed ones train.
use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::{
    AdamW, Embedding, Init, Linear, Optimizer, ParamsAdamW, VarBuilder, VarMap, conv2d, embedding,
    linear, loss::cross_entropy,
};

include!("../../harness.rs");

const WIDTH: usize = 128;
const HEADS: usize = 4;
const TIME: usize = 128;
const LETTERS: usize = 65;

struct Norm {
    weight: Tensor,
    bias: Tensor,
}

impl Norm {
    fn new(vars: VarBuilder) -> Result<Norm> {
        Ok(Norm {
            weight: vars.get_with_hints(WIDTH, "weight", Init::Const(1.0))?,
            bias: vars.get_with_hints(WIDTH, "bias", Init::Const(0.0))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        candle_nn::ops::layer_norm_slow(x, &self.weight, &self.bias, 1e-5)
    }
}

struct Block {
    project: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
    norm1: Norm,
    norm2: Norm,
}

impl Block {
    fn new(vars: VarBuilder) -> Result<Block> {
        Ok(Block {
            project: linear(WIDTH, 3 * WIDTH, vars.pp("project"))?,
            out: linear(WIDTH, WIDTH, vars.pp("out"))?,
            up: linear(WIDTH, 4 * WIDTH, vars.pp("up"))?,
            down: linear(4 * WIDTH, WIDTH, vars.pp("down"))?,
            norm1: Norm::new(vars.pp("norm1"))?,
            norm2: Norm::new(vars.pp("norm2"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (batch, time, width) = x.dims3()?;
        let each = width / HEADS;
        let packed = self.project.forward(&self.norm1.forward(x)?)?;
        let packed = packed.reshape((batch, time, 3, HEADS, each))?;
        let packed = packed.permute((2, 0, 3, 1, 4))?.contiguous()?;
        let (q, k, v) = (packed.get(0)?, packed.get(1)?, packed.get(2)?);
        let scores = (q.matmul(&k.t()?)? * (1.0 / (each as f64).sqrt()))?;
        let shares = candle_nn::ops::softmax(&scores.broadcast_add(mask)?, D::Minus1)?;
        let mixed = shares.matmul(&v)?.transpose(1, 2)?.reshape((batch, time, width))?;
        let x = (x + self.out.forward(&mixed)?)?;
        let hidden = self.up.forward(&self.norm2.forward(&x)?)?.gelu_erf()?;
        &x + self.down.forward(&hidden)?
    }
}

struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
    places: Tensor,
    mask: Tensor,
}

impl Gpt {
    fn new(vars: VarBuilder, device: &Device) -> Result<Gpt> {
        let hidden = |i: usize| if i % TIME > i / TIME { f32::NEG_INFINITY } else { 0.0 };
        let mask: Vec<f32> = (0..TIME * TIME).map(hidden).collect();
        let block = |i: usize| Block::new(vars.pp(format!("blocks.{i}")));
        Ok(Gpt {
            tokens: embedding(LETTERS, WIDTH, vars.pp("tokens"))?,
            positions: embedding(TIME, WIDTH, vars.pp("positions"))?,
            blocks: (0..4).map(block).collect::<Result<_>>()?,
            norm: Norm::new(vars.pp("norm"))?,
            head: linear(WIDTH, LETTERS, vars.pp("head"))?,
            places: Tensor::arange(0u32, TIME as u32, device)?,
            mask: Tensor::from_vec(mask, (TIME, TIME), device)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let positions = self.positions.forward(&self.places)?;
        let mut x = self.tokens.forward(x)?.broadcast_add(&positions)?;
        for block in &self.blocks {
            x = block.forward(&x, &self.mask)?;
        }
        self.head.forward(&self.norm.forward(&x)?)?.flatten(0, 1)
    }
}

fn main() -> Result<()> {
    let arguments = arguments();
    let device = Device::Cpu;
    let map = VarMap::new();
    let vars = VarBuilder::from_varmap(&map, DType::F32, &device);
    let integers = |count: usize, end: u64| {
        let data: Vec<u32> = indices(count, end).map(|n| n as u32).collect();
        Tensor::from_vec(data, count, &device)
    };
    let normal = |shape: &[usize]| Tensor::randn(0f32, 1.0, shape, &device);
    let loss: Box<dyn Fn() -> Result<Tensor>> = match arguments.name.as_str() {
        "W1" => {
            let first = linear(784, 512, vars.pp("first"))?;
            let second = linear(512, 512, vars.pp("second"))?;
            let head = linear(512, 10, vars.pp("head"))?;
            let (x, y) = (normal(&[128, 784])?, integers(128, 10)?);
            Box::new(move || {
                let x = second.forward(&first.forward(&x)?.relu()?)?.relu()?;
                cross_entropy(&head.forward(&x)?, &y)
            })
        }
        "W2" => {
            let conv1 = conv2d(1, 64, 3, Default::default(), vars.pp("conv1"))?;
            let conv2 = conv2d(64, 64, 3, Default::default(), vars.pp("conv2"))?;
            let hidden = linear(7744, 64, vars.pp("hidden"))?;
            let head = linear(64, 10, vars.pp("head"))?;
            let (x, y) = (normal(&[64, 1, 28, 28])?, integers(64, 10)?);
            Box::new(move || {
                let x = conv1.forward(&x)?.relu()?.max_pool2d(2)?;
                let x = conv2.forward(&x)?.relu()?.flatten_from(1)?;
                cross_entropy(&head.forward(&hidden.forward(&x)?.relu()?)?, &y)
            })
        }
        "W4" => {
            let model = Gpt::new(vars, &device)?;
            let x = integers(16 * TIME, LETTERS as u64)?.reshape((16, TIME))?;
            let y = integers(16 * TIME, LETTERS as u64)?;
            Box::new(move || cross_entropy(&model.forward(&x)?, &y))
        }
        other => panic!("this peer has W1, W2 and W4, not {other}"),
    };
    let settings = ParamsAdamW {
        lr: 1e-3,
        weight_decay: 0.0,
        ..Default::default()
    };
    let mut optimizer = AdamW::new(map.all_vars(), settings)?;
    let parameters = map.all_vars().iter().map(|v| v.elem_count()).sum();
    measure("candle", &arguments, parameters, || {
        let step = loss().and_then(|loss| optimizer.backward_step(&loss));
        step.expect("a step that works");
    });
    Ok(())
}
