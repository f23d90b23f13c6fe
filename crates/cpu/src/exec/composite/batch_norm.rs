//! Batch normalisation and its gradient.
use crate::exec::convert;
use crate::exec::cx::{Compile, Cx, Kernel, Operand};
use crate::exec::view::Arg;
use bimetal_kernels::batch_norm::{self, Planes, Source, Target};
use bimetal_tensor::plan::Meta;
use bimetal_tensor::{DType, ErrorKind, Result};

/// Elements of a channel in an image below which the decomposition is as fast.
const LEAST_PLANE: usize = 16;

/// Whether the kernels take operands like these: x (also dy, if there are five), then parameters and statistics.
pub(crate) fn native(inputs: &[Meta]) -> bool {
    let shape = inputs[0].shape;
    let statistics = match inputs.len() {
        5 => &inputs[2..4],
        _ => &[],
    };
    inputs
        .iter()
        .all(|m| m.dtype.is_float() && m.dtype != DType::F64)
        && statistics.iter().all(|m| m.dtype == DType::F32)
        && shape.rank() >= 2
        && shape.numel() > 0
        && shape[2..].iter().product::<usize>() >= LEAST_PLANE
}

/// The normalisation, or its gradient if `eps` is missing.
pub(crate) struct BatchNorm {
    eps: Option<f64>,
    planes: Planes,
    x: Vec<Operand>,
    y: Vec<Option<Operand>>,
}

impl BatchNorm {
    pub(crate) fn new(
        eps: Option<f64>,
        x: Vec<Operand>,
        y: Vec<Option<Operand>>,
        cx: &Compile<'_>,
    ) -> Result<BatchNorm> {
        let (n, shape) = (x[0].numel, x[0].shape);
        let planes = Planes {
            batch: shape[0],
            channels: shape[1],
            plane: shape[2..].iter().product(),
        };
        let c = planes.channels;
        // Sizes of inputs and outputs.
        let (inputs, outputs) = match eps {
            Some(_) => (vec![n, c, c], vec![n, c, c, c]),
            None => (vec![n, c, c, c, n], vec![n, c, c]),
        };
        let sizes = x.iter().map(|d| d.numel).eq(inputs)
            && y.len() == outputs.len()
            && y.iter()
                .zip(outputs)
                .all(|(d, n)| d.as_ref().is_none_or(|d| d.numel == n));
        cx.check(sizes, "sizes of a batch normalisation do not match")?;
        let statistics = match eps {
            Some(_) => &y[1..],
            None => &[],
        };
        cx.check(
            statistics.iter().flatten().all(|d| d.dtype == DType::F32),
            "statistics of a batch normalisation are not f32",
        )?;
        for (i, d) in y.iter().enumerate() {
            let Some(d) = d else { continue };
            let others = y.iter().enumerate().filter(|(j, _)| *j != i);
            let others = others.filter_map(|(_, o)| o.as_ref());
            let alone = x.iter().chain(others).all(|o| !cx.overlap(o.buf, d.buf));
            cx.check(alone, "a result of a batch normalisation shares memory")?;
        }
        Ok(BatchNorm { eps, planes, x, y })
    }

    fn source(&self, cx: &Cx<'_>, i: usize) -> Source {
        Source {
            ptr: cx.ptr(self.x[i].buf),
            dtype: self.x[i].dtype,
        }
    }

    /// A small operand in f32.
    fn vector(&self, cx: &Cx<'_>, i: usize) -> Vec<f32> {
        let d = &self.x[i];
        let mut v = vec![0.0; d.numel];
        // SAFETY: the operand has these elements.
        unsafe { convert::load(d.dtype, cx.ptr(d.buf), 1, d.numel, v.as_mut_ptr().cast()) };
        v
    }
}

impl Kernel for BatchNorm {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        let target = match &self.y[0] {
            Some(d) => Target {
                ptr: cx.ptr(d.buf),
                dtype: d.dtype,
            },
            None => Target {
                ptr: std::ptr::null_mut(),
                dtype: DType::F32,
            },
        };
        let gamma = self.vector(cx, 1);
        let mut small: [Vec<f32>; 3] = std::array::from_fn(|_| vec![0.0; self.planes.channels]);
        let [a, b, c] = &mut small;
        // SAFETY: sizes and dtypes were checked when the plan was compiled, and results share no memory.
        unsafe {
            match self.eps {
                Some(eps) => {
                    let beta = self.vector(cx, 2);
                    let x = self.source(cx, 0);
                    let stats = [&mut a[..], &mut b[..], &mut c[..]];
                    batch_norm::batch_norm(&self.planes, x, &gamma, &beta, eps, target, stats);
                }
                None => {
                    let (x, dy) = (self.source(cx, 0), self.source(cx, 4));
                    let (mean, rstd) = (self.vector(cx, 2), self.vector(cx, 3));
                    batch_norm::batch_norm_grad(
                        &self.planes,
                        x,
                        dy,
                        &gamma,
                        [&mean, &rstd],
                        target,
                        [&mut a[..], &mut b[..]],
                    );
                }
            }
        }
        for (d, v) in self.y[1..].iter().zip(&small) {
            let Some(d) = d else { continue };
            let v = Arg::dense(v.as_ptr().cast());
            // SAFETY: the result has an element per channel and shares memory with nothing else.
            unsafe { convert::store(d.dtype, cx.ptr(d.buf), 1, d.numel, v, DType::F32) };
        }
        Ok(())
    }

    fn work(&self) -> usize {
        8 * self.x[0].numel
    }
}
