//! A GPT on characters, in the spirit of nanoGPT and with its settings for a CPU: trains on Shakespeare's plays, then writes some.
//!
//! `cargo run --release --example char_gpt`; `-- --data FILE` takes another text.

use bimetal::prelude::*;
use bimetal_examples::{Defaults, Extra, Figures, Folder, Options, Random};
use std::process::ExitCode;

const DEFAULTS: Defaults = Defaults {
    name: "char_gpt",
    about: "Trains a small GPT on the characters of a text and prints what it writes.",
    policy: "mixed_float16",
    length: ("steps", 2000),
    batch: 12,
    data: "tinyshakespeare.txt",
    extra: &[Extra {
        name: "context",
        value: 64,
        help: "characters that the model sees",
    }],
};

const LAYERS: usize = 4;
const HEADS: usize = 4;
const WIDTH: usize = 128;
/// Characters written at the end.
const WRITTEN: usize = 300;

struct Block {
    norm1: LayerNorm,
    attention: MultiHeadAttention,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

fn normal(std: f64) -> Init {
    Init::Normal { mean: 0.0, std }
}

/// Projections into the residual stream start smaller, since all of them add up (GPT-2).
fn residual() -> Init {
    normal(0.02 / (2.0 * LAYERS as f64).sqrt())
}

fn norm(scope: &Scope) -> LayerNorm {
    let options = LayerNormOptions {
        bias: false,
        ..LayerNormOptions::default()
    };
    LayerNorm::with(scope, &[WIDTH], options)
}

fn linear(scope: &Scope, inputs: usize, outputs: usize, weight_init: Init) -> Linear {
    let options = LinearOptions {
        bias: false,
        weight_init,
        ..LinearOptions::default()
    };
    Linear::with(scope, inputs, outputs, options)
}

impl Block {
    fn new(scope: &Scope) -> Block {
        let attention = MultiHeadAttentionOptions {
            causal: true,
            bias: false,
            in_init: normal(0.02),
            out_init: residual(),
            ..MultiHeadAttentionOptions::default()
        };
        Block {
            norm1: norm(&scope.at("norm1")),
            attention: MultiHeadAttention::with(&scope.at("attention"), WIDTH, HEADS, attention),
            norm2: norm(&scope.at("norm2")),
            up: linear(&scope.at("up"), WIDTH, 4 * WIDTH, normal(0.02)),
            down: linear(&scope.at("down"), 4 * WIDTH, WIDTH, residual()),
        }
    }
}

impl Layer for Block {
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        let x = x + self.attention.forward(&self.norm1.forward(x, cx), cx);
        let hidden = self.up.forward(&self.norm2.forward(&x, cx), cx).gelu();
        x + self.down.forward(&hidden, cx)
    }
}

impl Gpt {
    fn new(scope: &Scope, vocabulary: usize, context: usize) -> Gpt {
        let table = EmbeddingOptions {
            init: normal(0.02),
            ..EmbeddingOptions::default()
        };
        let tokens = Embedding::with(&scope.at("tokens"), vocabulary, WIDTH, table);
        let blocks = scope.at("blocks");
        Gpt {
            // The same table on both ends, here in full precision for the loss.
            head: tokens.projection(&scope.at("head").policy("float32")),
            tokens,
            positions: Embedding::with(&scope.at("positions"), context, WIDTH, table),
            blocks: (0..LAYERS).map(|i| Block::new(&blocks.at(i))).collect(),
            norm: norm(&scope.at("norm")),
        }
    }
}

impl Layer for Gpt {
    /// Tokens `[batch, time]` to logits `[batch, time, vocabulary]`.
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        Tensor::build(|| {
            let [_, time] = x.dims()?;
            let places = Tensor::arange(time, cx.store().device());
            let mut x = self.tokens.forward(x, cx) + self.positions.forward(&places, cx);
            for block in &self.blocks {
                x = block.forward(&x, cx);
            }
            Ok(self.head.forward(&self.norm.forward(&x, cx), cx))
        })
    }
}

fn main() -> ExitCode {
    bimetal_examples::main(&DEFAULTS, run)
}

fn run(options: Options) -> Result<()> {
    let folder = Folder::open(&options)?;
    let (context, steps) = (options.extra("context"), options.length);
    let text = CharText::open(&options.data)?;
    let (train_text, valid_text) = text.split_at(text.tokens().len() * 9 / 10)?;
    let windows = train_text.random_windows(context, options.seed)?;
    let windows = windows.take(options.limit.unwrap_or(usize::MAX));
    let train = || {
        Loader::new(windows.clone())
            .batch(options.batch)
            .prefetch(2)
    };
    let valid = Loader::new(valid_text.windows(context)?)
        .batch(64)
        .prefetch(2);

    let device = bimetal::device(&options.device, options.threads)?;
    let store = ParamStore::new(&device, options.policy.clone()).seed(options.seed);
    let net = Gpt::new(&store.root(), text.vocab().len(), context);
    let next_character = |batch: &TensorBatch, cx: &Ctx| {
        Output::new(cross_entropy(&net.forward(&batch[0], cx), &batch[1]))
    };

    let total = u32::try_from(steps).unwrap_or(u32::MAX);
    let optimizer = AdamW::new(warmup_cosine(1e-3, 1e-4, 100.min(total / 2), total))
        .betas(0.9, 0.99)
        .weight_decay(0.1)
        .decay_matrices_only();
    let trainer = Trainer::new(&store, optimizer)
        .clip_norm(1.0)
        .steps_per_epoch(500);
    let mut trainer = folder.trainer(trainer, &options);
    let report = trainer.fit_steps(&next_character, train(), Some(valid), steps)?;

    println!("\n{}", write(&net, &store, &text, context, options.seed)?);
    println!(
        "\n{} in {} on {}",
        options.name,
        options.policy_name,
        device.info().name
    );
    print!("{report}");
    println!("\nrun folder: {}", folder.path().display());
    bimetal_examples::report(&options, &mut trainer, &next_character, train())?;
    Figures::new(&options, &report).write(&options)
}

/// Characters drawn one after the other, each from the model's distribution after all before it.
fn write(
    net: &Gpt,
    store: &ParamStore,
    text: &CharText,
    context: usize,
    seed: u64,
) -> Result<String> {
    let mut tokens = vec![0i32];
    let mut random = Random::new(&[seed]);
    while tokens.len() <= WRITTEN {
        let seen = &tokens[tokens.len().saturating_sub(context)..];
        let last = seen.len() as i32 - 1;
        // Padded to one length, so that there is one plan: what follows a character does not change what is said about it.
        let mut x = seen.to_vec();
        x.resize(context, 0);
        let x = Tensor::from_slice(&x, &[1, context], store.device());
        let last = Tensor::from_slice(&[last], &[1], store.device());
        let logits = net.forward(&x, &store.eval()).take(&last, 1);
        let chances = (logits / 0.8).softmax(-1).to_vec::<f32>()?;
        let mut left = random.fraction();
        let drawn = chances.iter().position(|chance| {
            left -= f64::from(*chance);
            left < 0.0
        });
        tokens.push(drawn.unwrap_or(chances.len() - 1) as i32);
    }
    Ok(text.vocab().decode(&tokens[1..])?)
}
