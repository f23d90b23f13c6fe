//! What bimetal shows of its GPU kernels, run by `cargo xtask` or by itself: `bimetal-gpu gate`.

mod bench;
mod convolutions;
mod disassembly;
mod gate;
mod options;
mod products;

use options::Options;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let task = words.next().unwrap_or_default();
    let options = Options::new(words.collect());
    let outcome = match task.as_str() {
        "bench" => bench::run(options),
        "gate" => gate::run(options),
        "products" => products::run(options),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

const USAGE: &str = "usage: bimetal-gpu TASK

  bench [--backend cuda] [--json FILE] [--quick] [--probe]
      what products reach on the device; --probe only says whether there is one
  gate [--json FILE] [--quick] [--only NAME] [--plant-scalar-kernel]
      compiles every matrix kernel with NVRTC and counts the matrix instructions of its code.
      CUDA_PATH says where CUDA's headers are; nvdisasm and cuobjdump are looked for in PATH
  products [--only WORDS]
      products on the device beside the same on the CPU, bit by bit";
