//! Writes the first samples of MNIST as a data set of its own: how `examples/data/mnist` was made.
//!
//! `cargo run -p bimetal-data --example mnist_subset -- FULL_DIR OUT_DIR 6000 2000`

use std::error::Error;
use std::path::Path;

use bimetal_data::{Array, read_idx, write_idx};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [full, out, train, test] = &args[..] else {
        return Err("usage: mnist_subset FULL_DIR OUT_DIR TRAIN_SAMPLES TEST_SAMPLES".into());
    };
    std::fs::create_dir_all(out)?;
    for (part, n) in [("train", train.parse::<usize>()?), ("t10k", test.parse()?)] {
        for what in ["images-idx3", "labels-idx1"] {
            let name = format!("{part}-{what}-ubyte.gz");
            let array: Array =
                read_idx(Path::new(full).join(&name))?.gather(&(0..n).collect::<Vec<_>>())?;
            write_idx(Path::new(out).join(&name), &array)?;
            println!("{name}: {:?}", array.shape());
        }
    }
    Ok(())
}
