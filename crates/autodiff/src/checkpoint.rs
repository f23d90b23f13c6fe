//! Recomputation instead of memory.
use bimetal_tensor::{Error, Tensor};

/// The result of `f` on `inputs`, whose backward pass computes the values inside of `f` again instead of keeping them (Chen et al. 2016,
/// "Training deep nets with sublinear memory cost").
///
/// `f` is called once. Gradients and dropout masks are the same to the bit as without. List every tensor that `f` uses and
/// that is computed outside of it; parameters and other state that `f` reads need not be listed and get their gradients too. Checkpoints
/// may be nested.
///
/// ```
/// use bimetal_autodiff::checkpoint;
/// use bimetal_tensor::Tensor;
///
/// fn block(x: &Tensor, w: &Tensor) -> Tensor {
///     checkpoint(|t| t[0].matmul(&t[1]).gelu() + &t[0], &[x, w])
/// }
/// ```
#[track_caller]
pub fn checkpoint(f: impl FnOnce(&[Tensor]) -> Tensor, inputs: &[&Tensor]) -> Tensor {
    let missing = || Tensor::invalid(Error::other("checkpoint", "the closure gave no result"));
    checkpoint_many(|x| vec![f(x)], inputs)
        .pop()
        .unwrap_or_else(missing)
}

/// As [`checkpoint`], with any number of results up to 255.
#[track_caller]
pub fn checkpoint_many(
    f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    inputs: &[&Tensor],
) -> Vec<Tensor> {
    let handles: Vec<Tensor> = inputs.iter().map(|t| (*t).clone()).collect();
    let results = f(&handles);
    if results.is_empty() {
        return results;
    }
    if results.len() > u8::MAX as usize {
        let detail = format!(
            "a segment has at most 255 results, found {}; join some",
            results.len()
        );
        return vec![Tensor::invalid(Error::argument("checkpoint", detail)); results.len()];
    }
    Tensor::checkpointed(&results.iter().collect::<Vec<_>>(), inputs)
}
