//! A convolutional network on handwritten digits, in mixed precision: the model of the TensorFlow tutorials.
//!
//! `cargo run --release --example mnist` trains on the 6,000 images that come with the repository and ends in a table. With
//! the full set in a folder: `-- --data DIR --epochs 5`.

use bimetal::data;
use bimetal::prelude::*;
use bimetal_examples::{Defaults, Figures, Folder, Options, Random};
use std::process::ExitCode;

const DEFAULTS: Defaults = Defaults {
    name: "mnist",
    about: "Trains a convolutional network on MNIST.",
    policy: "mixed_float16",
    length: ("epochs", 12),
    batch: 64,
    data: "mnist",
    extra: &[],
};

struct Net {
    conv1: Conv2d,
    pool: MaxPool2d,
    conv2: Conv2d,
    hidden: Linear,
    head: Linear,
}

impl Net {
    fn new(scope: &Scope) -> Net {
        Net {
            conv1: Conv2d::new(&scope.at("conv1"), 1, 64, 3),
            pool: MaxPool2d::new(2),
            conv2: Conv2d::new(&scope.at("conv2"), 64, 64, 3),
            hidden: Linear::new(&scope.at("hidden"), 64 * 11 * 11, 64),
            // The loss sees logits in full precision.
            head: Linear::new(&scope.at("head").policy("float32"), 64, 10),
        }
    }
}

impl Layer for Net {
    /// `[n, 1, 28, 28]` to logits `[n, 10]`.
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        let x = self.conv1.forward(x, cx).relu();
        let x = self.pool.forward(&x, cx);
        let x = self.conv2.forward(&x, cx).relu();
        let x = self.hidden.forward(&x.flatten(1..=3), cx).relu();
        self.head.forward(&x, cx)
    }
}

/// Moves each image by up to two pixels, so that few images teach more. The same batch of the same epoch is always moved alike.
fn shifted(mut batch: Batch, seed: u64) -> data::Result<Batch> {
    const REACH: usize = 2;
    let mut random = Random::new(&[seed, batch.epoch, batch.index]);
    let (shape, pixels) = (
        batch.arrays[0].shape().to_vec(),
        batch.arrays[0].view::<u8>()?,
    );
    let (height, width) = (shape[1], shape[2]);
    let mut moved = vec![0u8; pixels.len()];
    let images = pixels.chunks(height * width);
    for (to, from) in moved.chunks_mut(height * width).zip(images) {
        let (down, right) = (random.below(2 * REACH + 1), random.below(2 * REACH + 1));
        for row in 0..height {
            for column in 0..width {
                // Beyond the edge the index wraps to a number outside, where the image is black.
                let (y, x) = (
                    (row + REACH).wrapping_sub(down),
                    (column + REACH).wrapping_sub(right),
                );
                if y < height && x < width {
                    to[row * width + column] = from[y * width + x];
                }
            }
        }
    }
    batch.arrays[0] = Array::from_vec(moved, &shape)?;
    Ok(batch)
}

fn main() -> ExitCode {
    bimetal_examples::main(&DEFAULTS, run)
}

fn run(options: Options) -> Result<()> {
    let folder = Folder::open(&options)?;
    let images = mnist(&options.data, Split::Train)?;
    let images = images.take(options.limit.unwrap_or(usize::MAX));
    let seed = options.seed;
    let train = || {
        Loader::new(images.clone())
            .batch(options.batch)
            .shuffle(seed)
            .map(move |batch| shifted(batch, seed))
            .prefetch(2)
    };
    let test = Loader::new(mnist(&options.data, Split::Test)?)
        .batch(250)
        .prefetch(2);
    let steps = train().batches_per_epoch()? * options.length;

    let device = bimetal::device(&options.device, options.threads)?;
    let store = ParamStore::new(&device, options.policy.clone()).seed(options.seed);
    let net = Net::new(&store.root());
    let classify = |batch: &TensorBatch, cx: &Ctx| {
        // Bytes [n, 28, 28] to floats [n, 1, 28, 28] between 0 and 1.
        let x = batch[0].unsqueeze(1).cast(DType::F32) / 255;
        let logits = net.forward(&x, cx);
        Output::new(cross_entropy(&logits, &batch[1])).accuracy(&logits, &batch[1])
    };

    let decay = Cosine {
        from: 2e-3,
        to: 2e-5,
        steps: steps.try_into().unwrap_or(u32::MAX),
    };
    let trainer = Trainer::new(&store, Adam::new(decay));
    let mut trainer = folder.trainer(trainer, &options);
    let report = trainer.fit(&classify, train(), Some(test), options.length as usize)?;

    let accuracy = report.valid.get("accuracy").unwrap_or(f64::NAN);
    println!(
        "\n{} in {} on {}",
        options.name,
        options.policy_name,
        device.info().name
    );
    print!("{report}");
    println!("{:<22}{:>12.2} %", "test accuracy", 100.0 * accuracy);
    println!("\nrun folder: {}", folder.path().display());
    bimetal_examples::report(&options, &mut trainer, &classify, train())?;

    let mut figures = Figures::new(&options, &report);
    figures.set("test_accuracy", accuracy.into());
    figures.write(&options)
}
