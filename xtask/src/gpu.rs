//! `gpu`: the stage of continuous integration that compiles cubecl: lints, documentation and tests of the GPU crates, on software Vulkan where there is no GPU, and the gates of CUDA.

use crate::args::Args;
use crate::{Result, ci, cuda_gate, test};

/// The `gpu` task.
pub fn run(args: Args) -> Result {
    args.finish()?;
    check()
}

/// All of it; the tests run even if a lint fails.
pub fn check() -> Result {
    let lints = ci::gpu_lints();
    let tests = test::gpu_crates().and(test::backend("wgpu", None));
    lints.and(tests).and_then(|()| cuda_gate::check())
}
