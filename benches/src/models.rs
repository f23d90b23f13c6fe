//! The networks of the train steps. Sizes and parameter counts are those of the peers' scripts.
use bimetal::prelude::*;

/// A network with its batch.
pub struct Model {
    /// From the batch to logits `[.., classes]`.
    pub net: Box<dyn Layer>,
    /// The input of every step.
    pub x: Tensor,
    /// The class indices of every step.
    pub y: Tensor,
}

/// Standard normal numbers (f32), computed.
pub(crate) fn normal(shape: &[usize], stream: u64, device: &Device) -> Result<Tensor> {
    use bimetal::tensor::graph::{Distribution, RandomKey};
    let key = RandomKey::Value { stream, micro: 0 };
    Ok(Tensor::random(Distribution::Normal, shape, key, None, device).settle()?)
}

/// Indices below `end`, all alike likely (I32).
pub(crate) fn indices(end: usize, shape: &[usize], device: &Device) -> Tensor {
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        ((state >> 33) % end as u64) as i32
    };
    let data: Vec<i32> = (0..shape.iter().product()).map(|_| draw()).collect();
    Tensor::from_slice(&data, shape, device)
}

/// The multiplications and additions of a product with `[inputs, outputs]` over `rows` rows: forward, the weight's gradient, and
/// the input's if somebody wants it.
pub(crate) fn product(rows: usize, inputs: usize, outputs: usize, input_gradient: bool) -> f64 {
    let passes = if input_gradient { 3.0 } else { 2.0 };
    2.0 * (rows * inputs * outputs) as f64 * passes
}

/// W1 with other sizes: `depth` hidden layers.
pub fn mlp(scope: &Scope, batch: usize, width: usize, depth: usize) -> Result<Model> {
    let mut net = Sequential::new();
    let mut inputs = 784;
    for i in 0..depth {
        net = net
            .then(Linear::new(&scope.at(i), inputs, width))
            .then(Activation::Relu);
        inputs = width;
    }
    let device = scope.store().device();
    Ok(Model {
        net: Box::new(net.then(Linear::new(&scope.at("head"), inputs, 10))),
        x: normal(&[batch, 784], 1, device)?,
        y: indices(10, &[batch], device),
    })
}

/// W1: 784-512-512-10.
pub fn w1(scope: &Scope) -> Result<Model> {
    mlp(scope, 128, 512, 2)
}

pub(crate) fn w1_flops() -> f64 {
    product(128, 784, 512, false) + product(128, 512, 512, true) + product(128, 512, 10, true)
}

/// W2: the network of the tutorials, on 28x28 images.
pub fn w2(scope: &Scope) -> Result<Model> {
    let net = Sequential::new()
        .then(Conv2d::new(&scope.at("conv1"), 1, 64, 3))
        .then(Activation::Relu)
        .then(MaxPool2d::new(2))
        .then(Conv2d::new(&scope.at("conv2"), 64, 64, 3))
        .then(Activation::Relu)
        .then(Flatten)
        .then(Linear::new(&scope.at("hidden"), 64 * 11 * 11, 64))
        .then(Activation::Relu)
        .then(Linear::new(&scope.at("head"), 64, 10));
    let device = scope.store().device();
    Ok(Model {
        net: Box::new(net),
        x: normal(&[64, 1, 28, 28], 1, device)?,
        y: indices(10, &[64], device),
    })
}

pub(crate) fn w2_flops() -> f64 {
    product(64 * 26 * 26, 9, 64, false)
        + product(64 * 11 * 11, 576, 64, true)
        + product(64, 7744, 64, true)
        + product(64, 64, 10, true)
}

pub(crate) fn convolution(
    scope: &Scope,
    [inputs, outputs]: [usize; 2],
    kernel: usize,
    stride: usize,
) -> Conv2d {
    let options = Conv2dOptions {
        stride: stride.into(),
        padding: (kernel / 2).into(),
        bias: false,
        ..Conv2dOptions::default()
    };
    Conv2d::with(scope, inputs, outputs, kernel, options)
}

/// Two convolutions around which the input passes by (He et al. 2016), projected where sizes change.
struct Residual {
    conv1: Conv2d,
    norm1: BatchNorm2d,
    conv2: Conv2d,
    norm2: BatchNorm2d,
    shortcut: Option<(Conv2d, BatchNorm2d)>,
}

impl Residual {
    fn new(scope: &Scope, inputs: usize, outputs: usize, stride: usize) -> Residual {
        let projected = stride != 1 || inputs != outputs;
        let shortcut = projected.then(|| {
            (
                convolution(&scope.at("conv3"), [inputs, outputs], 1, stride),
                BatchNorm2d::new(&scope.at("norm3"), outputs),
            )
        });
        Residual {
            conv1: convolution(&scope.at("conv1"), [inputs, outputs], 3, stride),
            norm1: BatchNorm2d::new(&scope.at("norm1"), outputs),
            conv2: convolution(&scope.at("conv2"), [outputs, outputs], 3, 1),
            norm2: BatchNorm2d::new(&scope.at("norm2"), outputs),
            shortcut,
        }
    }
}

impl Layer for Residual {
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        let y = self.norm1.forward(&self.conv1.forward(x, cx), cx).relu();
        let y = self.norm2.forward(&self.conv2.forward(&y, cx), cx);
        let x = match &self.shortcut {
            Some((conv, norm)) => norm.forward(&conv.forward(x, cx), cx),
            None => x.clone(),
        };
        (y + x).relu()
    }
}

/// Width and first stride of the three stages of W3, each of three blocks.
const STAGES: [(usize, usize); 3] = [(16, 1), (32, 2), (64, 2)];

/// W3: ResNet-20 on 32x32 images.
pub fn w3(scope: &Scope) -> Result<Model> {
    let mut net = Sequential::new()
        .then(convolution(&scope.at("conv"), [3, 16], 3, 1))
        .then(BatchNorm2d::new(&scope.at("norm"), 16))
        .then(Activation::Relu);
    let mut inputs = 16;
    for (stage, (width, first)) in STAGES.into_iter().enumerate() {
        for block in 0..3 {
            let stride = if block == 0 { first } else { 1 };
            let at = scope.at("blocks").at(3 * stage + block);
            net = net.then(Residual::new(&at, inputs, width, stride));
            inputs = width;
        }
    }
    let head = Linear::new(&scope.at("head"), 64, 10);
    let device = scope.store().device();
    Ok(Model {
        net: Box::new(net.then(GlobalAvgPool2d).then(Flatten).then(head)),
        x: normal(&[32, 3, 32, 32], 1, device)?,
        y: indices(10, &[32], device),
    })
}

pub(crate) fn w3_flops() -> f64 {
    let mut flops = product(32 * 32 * 32, 27, 16, false) + product(32, 64, 10, true);
    let (mut size, mut inputs) = (32, 16);
    for (width, first) in STAGES {
        size /= first;
        let positions = 32 * size * size;
        flops += product(positions, 9 * inputs, width, true);
        flops += 5.0 * product(positions, 9 * width, width, true);
        if first != 1 {
            flops += product(positions, inputs, width, true);
        }
        inputs = width;
    }
    flops
}

/// A layer of a transformer (Vaswani et al. 2017), normalised before (GPT-2) or behind (BERT) its two halves.
pub(crate) struct Block {
    attention: MultiHeadAttention,
    norm1: LayerNorm,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
    dropout: Option<Dropout>,
    first: bool,
}

/// The sizes of a transformer.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Sequences in a batch.
    pub batch: usize,
    /// Tokens in a sequence.
    pub time: usize,
    /// Layers.
    pub depth: usize,
    /// The width of the residual stream; the hidden layers are four times as wide.
    pub width: usize,
}

const HEADS: usize = 4;

impl Block {
    pub(crate) fn new(scope: &Scope, width: usize, heads: usize, dropout: f64, gpt: bool) -> Block {
        let options = MultiHeadAttentionOptions {
            causal: gpt,
            dropout,
            ..MultiHeadAttentionOptions::default()
        };
        Block {
            attention: MultiHeadAttention::with(&scope.at("attention"), width, heads, options),
            norm1: LayerNorm::new(&scope.at("norm1"), width),
            norm2: LayerNorm::new(&scope.at("norm2"), width),
            up: Linear::new(&scope.at("up"), width, 4 * width),
            down: Linear::new(&scope.at("down"), 4 * width, width),
            dropout: (dropout > 0.0).then(|| Dropout::new(&scope.at("dropout"), dropout)),
            first: gpt,
        }
    }

    fn dropped(&self, x: Tensor, cx: &Ctx) -> Tensor {
        match &self.dropout {
            Some(dropout) => dropout.forward(&x, cx),
            None => x,
        }
    }

    fn hidden(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        let x = self.up.forward(x, cx).gelu();
        self.dropped(self.down.forward(&x, cx), cx)
    }
}

impl Layer for Block {
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        let attend = |x: &Tensor| self.dropped(self.attention.forward(x, cx), cx);
        if self.first {
            let x = x + attend(&self.norm1.forward(x, cx));
            return &x + self.hidden(&self.norm2.forward(&x, cx), cx);
        }
        let x = self.norm1.forward(&(x + attend(x)), cx);
        self.norm2.forward(&(&x + self.hidden(&x, cx)), cx)
    }
}

fn blocks(scope: &Scope, sizes: Sizes, gpt: bool) -> Vec<Block> {
    let scope = scope.at("blocks");
    (0..sizes.depth)
        .map(|i| Block::new(&scope.at(i), sizes.width, HEADS, 0.0, gpt))
        .collect()
}

/// Of all layers; the products of causal attention count whole.
pub(crate) fn block_flops(sizes: Sizes) -> f64 {
    let Sizes {
        batch, time, width, ..
    } = sizes;
    let weights = 3 * width * width + width * width + 2 * width * 4 * width;
    // Two products forward; backward the scores once more and four gradients.
    let attention = 7.0 * 2.0 * (batch * time * time * width) as f64;
    sizes.depth as f64 * (product(batch * time, weights, 1, true) + attention)
}

/// The sizes of W4.
pub const W4: Sizes = Sizes {
    batch: 16,
    time: 128,
    depth: 4,
    width: 128,
};
const LETTERS: usize = 65;

/// W4 with other sizes: a GPT over 65 characters, output layer untied and with a bias.
pub fn gpt(scope: &Scope, sizes: Sizes) -> Result<Model> {
    let device = scope.store().device();
    let tokens = Embedding::new(&scope.at("tokens"), LETTERS, sizes.width);
    let positions = Embedding::new(&scope.at("positions"), sizes.time, sizes.width);
    let blocks = blocks(scope, sizes, true);
    let norm = LayerNorm::new(&scope.at("norm"), sizes.width);
    let head = Linear::new(&scope.at("head"), sizes.width, LETTERS);
    let places = Tensor::arange(sizes.time, device).settle()?;
    let net = move |x: &Tensor, cx: &Ctx| {
        let mut x = tokens.forward(x, cx) + positions.forward(&places, cx);
        for block in &blocks {
            x = block.forward(&x, cx);
        }
        head.forward(&norm.forward(&x, cx), cx)
    };
    Ok(Model {
        net: Box::new(net),
        x: indices(LETTERS, &[sizes.batch, sizes.time], device),
        y: indices(LETTERS, &[sizes.batch, sizes.time], device),
    })
}

/// W4: GPT.
pub fn w4(scope: &Scope) -> Result<Model> {
    gpt(scope, W4)
}

pub(crate) fn w4_flops() -> f64 {
    block_flops(W4) + product(W4.batch * W4.time, W4.width, LETTERS, true)
}

const W5: Sizes = Sizes {
    batch: 8,
    time: 128,
    depth: 4,
    width: 256,
};
const WORDS: usize = 30522;

/// W5: BERT-small with a classifier of two classes on the first token.
pub fn w5(scope: &Scope) -> Result<Model> {
    let device = scope.store().device();
    let tokens = Embedding::new(&scope.at("tokens"), WORDS, W5.width);
    let positions = Embedding::new(&scope.at("positions"), W5.time, W5.width);
    let norm = LayerNorm::new(&scope.at("norm"), W5.width);
    let blocks = blocks(scope, W5, false);
    let pool = Linear::new(&scope.at("pool"), W5.width, W5.width);
    let head = Linear::new(&scope.at("head"), W5.width, 2);
    let places = Tensor::arange(W5.time, device).settle()?;
    let net = move |x: &Tensor, cx: &Ctx| {
        let x = tokens.forward(x, cx) + positions.forward(&places, cx);
        let mut x = norm.forward(&x, cx);
        for block in &blocks {
            x = block.forward(&x, cx);
        }
        head.forward(&pool.forward(&x.index(1, 0), cx).tanh(), cx)
    };
    Ok(Model {
        net: Box::new(net),
        x: indices(WORDS, &[W5.batch, W5.time], device),
        y: indices(2, &[W5.batch], device),
    })
}

pub(crate) fn w5_flops() -> f64 {
    block_flops(W5)
        + product(W5.batch, W5.width, W5.width, true)
        + product(W5.batch, W5.width, 2, true)
}

/// W6: an LSTM of 128 units over 50 steps, classified by its last output.
pub fn w6(scope: &Scope) -> Result<Model> {
    let device = scope.store().device();
    let lstm = Lstm::new(&scope.at("lstm"), 128, 128);
    let head = Linear::new(&scope.at("head"), 128, 10);
    let net = move |x: &Tensor, cx: &Ctx| head.forward(&lstm.forward(x, cx).index(1, 49), cx);
    Ok(Model {
        net: Box::new(net),
        x: normal(&[64, 50, 128], 1, device)?,
        y: indices(10, &[64], device),
    })
}

pub(crate) fn w6_flops() -> f64 {
    product(64 * 50, 128, 512, false)
        + product(64 * 50, 128, 512, true)
        + product(64, 128, 10, true)
}
