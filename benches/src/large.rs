//! Networks of the size that GPUs are bought for, built from the layers: GPT-2 124M, BERT-base and ResNet-50.
use crate::models::{Block, Model, Sizes, block_flops, convolution, indices, normal, product};
use bimetal::layers::PoolOptions;
use bimetal::prelude::*;

/// The train step of a large network.
#[derive(Clone, Copy, Debug)]
pub struct Large {
    /// `gpt2-124m`, `bert-base` or `resnet-50`.
    pub name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Gpt(Transformer),
    Bert(Transformer),
    ResNet(ResNet),
}

#[derive(Clone, Copy, Debug)]
struct Transformer {
    sizes: Sizes,
    heads: usize,
    words: usize,
}

#[derive(Clone, Copy, Debug)]
struct ResNet {
    batch: usize,
    size: usize,
    /// Width of the first stage's inner convolutions.
    width: usize,
    /// Blocks of each stage.
    blocks: [usize; 4],
    classes: usize,
}

const DROPOUT: f64 = 0.1;

/// GPT-2 124M (Radford et al. 2019) on 8 sequences of 1024 tokens: 12 layers of width 768 with 12 heads, 50,257 words, dropout of 0.1, the output layer tied to the embedding.
pub const GPT2: Large = Large {
    name: "gpt2-124m",
    kind: Kind::Gpt(Transformer {
        sizes: Sizes {
            batch: 8,
            time: 1024,
            depth: 12,
            width: 768,
        },
        heads: 12,
        words: 50257,
    }),
};

/// BERT-base (Devlin et al. 2019) on 32 sequences of 128 tokens: 12 layers of width 768 with 12 heads, 30,522 words, dropout of 0.1, and a classifier of two classes on the first token.
pub const BERT_BASE: Large = Large {
    name: "bert-base",
    kind: Kind::Bert(Transformer {
        sizes: Sizes {
            batch: 32,
            time: 128,
            depth: 12,
            width: 768,
        },
        heads: 12,
        words: 30522,
    }),
};

/// ResNet-50 (He et al. 2016; strides in the 3x3 convolutions) on 64 images of 224x224, 1000 classes.
pub const RESNET50: Large = Large {
    name: "resnet-50",
    kind: Kind::ResNet(ResNet {
        batch: 64,
        size: 224,
        width: 64,
        blocks: [3, 4, 6, 3],
        classes: 1000,
    }),
};

impl Large {
    /// All three.
    pub const ALL: [Large; 3] = [GPT2, BERT_BASE, RESNET50];

    /// The same layers, few and narrow, for machines that only try whether everything runs.
    pub fn tiny(self) -> Large {
        let small = |t: Transformer| Transformer {
            sizes: Sizes {
                batch: 2,
                time: 16,
                depth: 1,
                width: 16,
            },
            heads: 2,
            words: t.words.min(64),
        };
        Large {
            kind: match self.kind {
                Kind::Gpt(t) => Kind::Gpt(small(t)),
                Kind::Bert(t) => Kind::Bert(small(t)),
                Kind::ResNet(_) => Kind::ResNet(ResNet {
                    batch: 2,
                    size: 32,
                    width: 4,
                    blocks: [1; 4],
                    classes: 10,
                }),
            },
            ..self
        }
    }

    /// What is counted: tokens or images.
    pub fn unit(&self) -> &'static str {
        match self.kind {
            Kind::Gpt(_) | Kind::Bert(_) => "tokens",
            Kind::ResNet(_) => "images",
        }
    }

    /// Tokens or images of a step.
    pub fn items(&self) -> usize {
        match self.kind {
            Kind::Gpt(t) | Kind::Bert(t) => t.sizes.batch * t.sizes.time,
            Kind::ResNet(r) => r.batch,
        }
    }

    /// The multiplications and additions of a step's products, forward and backward, each counted once: what is recomputed does not count. Causal attention counts as if every token saw
    /// all others.
    pub fn flops(&self) -> f64 {
        match self.kind {
            Kind::Gpt(t) => {
                let rows = t.sizes.batch * t.sizes.time;
                model_flops(t.sizes) + product(rows, t.sizes.width, t.words, true)
            }
            Kind::Bert(t) => {
                let head = product(t.sizes.batch, t.sizes.width, t.sizes.width, true);
                model_flops(t.sizes) + head + product(t.sizes.batch, t.sizes.width, 2, true)
            }
            Kind::ResNet(r) => r.flops(),
        }
    }

    /// Builds the network and its batch.
    ///
    /// # Errors
    /// Those of the device.
    pub fn build(&self, scope: &Scope) -> Result<Model> {
        match self.kind {
            Kind::Gpt(t) => t.gpt(scope),
            Kind::Bert(t) => t.bert(scope),
            Kind::ResNet(r) => r.build(scope),
        }
    }

    /// What it is trained with: AdamW, or SGD with momentum for images.
    pub fn optimizer(&self) -> Box<dyn Optimizer> {
        match self.kind {
            Kind::Gpt(_) | Kind::Bert(_) => Box::new(AdamW::new(1e-4)),
            Kind::ResNet(_) => Box::new(Sgd::new(0.01).momentum(0.9).weight_decay(1e-4)),
        }
    }
}

/// Without the scores that the backward pass computes once more.
fn model_flops(sizes: Sizes) -> f64 {
    let again = 2.0 * (sizes.batch * sizes.time * sizes.time * sizes.width) as f64;
    block_flops(sizes) - sizes.depth as f64 * again
}

impl Transformer {
    fn layers(&self, scope: &Scope, gpt: bool) -> Vec<Block> {
        (0..self.sizes.depth)
            .map(|i| Block::new(&scope.at(i), self.sizes.width, self.heads, DROPOUT, gpt))
            .collect()
    }

    fn gpt(self, scope: &Scope) -> Result<Model> {
        let Sizes {
            batch, time, width, ..
        } = self.sizes;
        let device = scope.store().device();
        let tokens = Embedding::new(&scope.at("wte"), self.words, width);
        let positions = Embedding::new(&scope.at("wpe"), time, width);
        let blocks = self.layers(&scope.at("h"), true);
        let dropout = Dropout::new(&scope.at("drop"), DROPOUT);
        let norm = LayerNorm::new(&scope.at("ln_f"), width);
        let places = Tensor::arange(time, device).settle()?;
        let net = move |x: &Tensor, cx: &Ctx| {
            let x = tokens.forward(x, cx) + positions.forward(&places, cx);
            let mut x = dropout.forward(&x, cx);
            for block in &blocks {
                x = block.forward(&x, cx);
            }
            norm.forward(&x, cx).matmul(&tokens.weight().compute().t())
        };
        Ok(Model {
            net: Box::new(net),
            x: indices(self.words, &[batch, time], device),
            y: indices(self.words, &[batch, time], device),
        })
    }

    fn bert(self, scope: &Scope) -> Result<Model> {
        let Sizes {
            batch, time, width, ..
        } = self.sizes;
        let device = scope.store().device();
        let tokens = Embedding::new(&scope.at("tokens"), self.words, width);
        let positions = Embedding::new(&scope.at("positions"), time, width);
        let norm = LayerNorm::new(&scope.at("norm"), width);
        let dropout = Dropout::new(&scope.at("drop"), DROPOUT);
        let blocks = self.layers(&scope.at("layer"), false);
        let pool = Linear::new(&scope.at("pool"), width, width);
        let head = Linear::new(&scope.at("head"), width, 2);
        let places = Tensor::arange(time, device).settle()?;
        let net = move |x: &Tensor, cx: &Ctx| {
            let x = tokens.forward(x, cx) + positions.forward(&places, cx);
            let mut x = dropout.forward(&norm.forward(&x, cx), cx);
            for block in &blocks {
                x = block.forward(&x, cx);
            }
            head.forward(&pool.forward(&x.index(1, 0), cx).tanh(), cx)
        };
        Ok(Model {
            net: Box::new(net),
            x: indices(self.words, &[batch, time], device),
            y: indices(2, &[batch], device),
        })
    }
}

/// A convolution and the normalisation behind it.
struct Normed(Conv2d, BatchNorm2d);

impl Normed {
    fn new(scope: &Scope, channels: [usize; 2], kernel: usize, stride: usize) -> Normed {
        Normed(
            convolution(&scope.at("conv"), channels, kernel, stride),
            BatchNorm2d::new(&scope.at("norm"), channels[1]),
        )
    }
}

impl Layer for Normed {
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self.1.forward(&self.0.forward(x, cx), cx)
    }
}

/// Convolutions of 1x1, 3x3 and 1x1 around which the input passes by.
struct Bottleneck {
    inner: [Normed; 3],
    shortcut: Option<Normed>,
}

impl Bottleneck {
    fn new(scope: &Scope, inputs: usize, width: usize, stride: usize) -> Bottleneck {
        let outputs = 4 * width;
        let at = |name: &str, channels, kernel, stride| {
            Normed::new(&scope.at(name), channels, kernel, stride)
        };
        Bottleneck {
            inner: [
                at("1", [inputs, width], 1, 1),
                at("2", [width, width], 3, stride),
                at("3", [width, outputs], 1, 1),
            ],
            shortcut: (stride != 1 || inputs != outputs)
                .then(|| at("shortcut", [inputs, outputs], 1, stride)),
        }
    }
}

impl Layer for Bottleneck {
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        let [a, b, c] = &self.inner;
        let y = b.forward(&a.forward(x, cx).relu(), cx).relu();
        let x = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x, cx),
            None => x.clone(),
        };
        (c.forward(&y, cx) + x).relu()
    }
}

impl ResNet {
    /// Input channels, inner width and stride of each block.
    fn layout(&self) -> Vec<[usize; 3]> {
        let mut inputs = self.width;
        let mut all = Vec::new();
        for (stage, count) in self.blocks.into_iter().enumerate() {
            let width = self.width << stage;
            for block in 0..count {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                all.push([inputs, width, stride]);
                inputs = 4 * width;
            }
        }
        all
    }

    fn build(self, scope: &Scope) -> Result<Model> {
        let mut net = Sequential::new()
            .then(Normed::new(&scope.at("stem"), [3, self.width], 7, 2))
            .then(Activation::Relu)
            .then(MaxPool2d::with(
                3,
                PoolOptions {
                    stride: Some(2.into()),
                    padding: 1.into(),
                    ..PoolOptions::default()
                },
            ));
        let blocks = scope.at("blocks");
        let mut features = self.width;
        for (i, [inputs, width, stride]) in self.layout().into_iter().enumerate() {
            net = net.then(Bottleneck::new(&blocks.at(i), inputs, width, stride));
            features = 4 * width;
        }
        let head = Linear::new(&scope.at("head"), features, self.classes);
        let device = scope.store().device();
        Ok(Model {
            net: Box::new(net.then(GlobalAvgPool2d).then(Flatten).then(head)),
            x: normal(&[self.batch, 3, self.size, self.size], 1, device)?,
            y: indices(self.classes, &[self.batch], device),
        })
    }

    fn flops(&self) -> f64 {
        let at = |size: usize| self.batch * size * size;
        let mut size = self.size.div_ceil(2);
        let mut flops = product(at(size), 3 * 49, self.width, false);
        size = size.div_ceil(2);
        let mut features = self.width;
        for [inputs, width, stride] in self.layout() {
            flops += product(at(size), inputs, width, true);
            size = size.div_ceil(stride);
            flops += product(at(size), 9 * width, width, true);
            flops += product(at(size), width, 4 * width, true);
            if stride != 1 || inputs != 4 * width {
                flops += product(at(size), inputs, 4 * width, true);
            }
            features = 4 * width;
        }
        flops + product(self.batch, features, self.classes, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(large: Large) -> usize {
        let device = bimetal::device("cpu", Some(1)).unwrap();
        let store = ParamStore::new(&device, "float32");
        let _model = large.build(&store.root()).unwrap();
        let slots = store.trainable_slots().unwrap();
        slots.iter().map(|p| p.shape().numel()).sum()
    }

    /// The numbers that PyTorch's own models have: `torchvision.models.resnet50`, and `GPT2LMHeadModel` of the transformers library.
    #[test]
    fn sizes_are_those_of_the_papers() {
        assert_eq!(parameters(RESNET50), 25_557_032);
        assert_eq!(parameters(GPT2), 124_439_808);
    }

    /// 4.09 G multiplications and additions a forward pass of an image, by torchvision's documentation; the first layer needs no gradient of its input.
    #[test]
    fn products_are_counted() {
        let stem = 2.0 * (64u64 * 112 * 112 * 147 * 64) as f64;
        let forward = (RESNET50.flops() + stem) / 3.0 / 64.0;
        assert!((forward / 2.0 / 4.09e9 - 1.0).abs() < 0.01, "{forward}");
        // 6 for each weight but the positions, and the scores and sums of attention: 12 layers of 12 t w.
        let weights = 6.0 * (124_439_808 - 1024 * 768 - 12 * (13 * 768) - 2 * 768) as f64;
        let per_token = weights + (12 * 12 * 1024 * 768) as f64;
        let ratio = GPT2.flops() / GPT2.items() as f64 / per_token;
        assert!((ratio - 1.0).abs() < 1e-3, "{ratio}");
    }

    #[test]
    fn tiny_ones_train() {
        let device = bimetal::device("cpu", Some(1)).unwrap();
        for large in Large::ALL.map(Large::tiny) {
            let store = ParamStore::new(&device, "mixed_bfloat16");
            let mut training =
                crate::Training::with(store, |s| large.build(s), large.optimizer()).unwrap();
            training.step().unwrap();
            assert!(training.loss().is_finite(), "{}", large.name);
        }
    }
}
