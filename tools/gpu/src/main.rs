//! What bimetal shows of its GPU kernels, run by `cargo xtask` or by itself: `bimetal-gpu gate`.

mod all;
mod bench;
mod convolutions;
mod device;
mod disassembly;
mod gate;
mod losses;
mod options;
mod products;
mod suite;
mod table;

use options::Options;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let task = words.next().unwrap_or_default();
    let options = Options::new(words.collect());
    let outcome = match task.as_str() {
        "all" => all::run(options),
        "bench" => bench::run(options),
        "gate" => gate::run(options),
        "losses" => losses::run(options),
        "products" => products::run(options),
        "suite" => suite::run(options),
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

  all [--out DIR] [--only PART,...] [--seconds N] [--full]
      everything, each part in a process and a time of its own (six minutes in all), PyTorch's train steps beside ours; a table at the end
  bench [--backend cuda|wgpu] [--only gemm|kernels|steps] [--json FILE] [--quick] [--tiny] [--seconds N] [--probe]
      what products, kernels and train steps reach on the device; rows that have not begun after N seconds are left out; --probe only says whether there is a device
  gate [--json FILE] [--quick] [--only NAME] [--plant-scalar-kernel]
      compiles every matrix kernel with NVRTC and counts the matrix instructions of its code.
      CUDA_PATH says where CUDA's headers are; nvdisasm and cuobjdump are looked for in PATH
  losses [--backend cuda|wgpu] [--only mlp|cnn|gpt]
      small networks trained on the device and on the CPU: their losses must agree
  products [--only WORDS]
      products on the device beside the same on the CPU, bit by bit
  suite conformance|gradcheck|pitfalls [--backend cuda|wgpu] [--rounds N] [--only WORDS]
      a test suite on the device";
