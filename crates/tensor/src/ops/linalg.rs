//! Matrix products, convolution and pooling.
use super::shape_of;
use crate::graph::{Conv2d, MatmulPrecision, Op, Pool2d};
use crate::plan::Meta;
use crate::tensor::{Inputs, Outs};
use crate::{DType, Error, Label, Result, Shape, Tensor};

impl Tensor {
    /// The matrix product `[.., m, k] x [.., k, n] -> [.., m, n]`; axes in front broadcast. f16, bf16 and f8 accumulate in f32 and
    /// round once; mixed floats promote to the wider, two f8 give f32.
    #[track_caller]
    pub fn matmul(&self, rhs: &Tensor) -> Tensor {
        self.matmul_with(rhs, MatmulPrecision::Exact, None)
    }

    /// As [`Tensor::matmul`], saying how f32 operands are multiplied and, if given, the dtype the result is rounded to.
    #[track_caller]
    pub fn matmul_with(
        &self,
        rhs: &Tensor,
        precision: MatmulPrecision,
        out: Option<DType>,
    ) -> Tensor {
        Tensor::make(|| {
            let (ma, mb) = (self.valid()?.meta(), rhs.valid()?.meta());
            let found = [ma.shape, mb.shape];
            if ma.shape.rank() < 2 || mb.shape.rank() < 2 {
                return Err(Error::shape(
                    "matmul",
                    &found,
                    "expected two tensors of at least 2 axes; use `unsqueeze` for vectors",
                ));
            }
            let (ra, rb) = (ma.shape.rank(), mb.shape.rank());
            let (m, k) = (ma.shape[ra - 2], ma.shape[ra - 1]);
            let (k2, n) = (mb.shape[rb - 2], mb.shape[rb - 1]);
            if k != k2 {
                return Err(Error::shape(
                    "matmul",
                    &found,
                    format!("inner sizes differ: {k} columns against {k2} rows"),
                ));
            }
            if ma.dtype == DType::Bool || mb.dtype == DType::Bool {
                return Err(Error::dtype(
                    "matmul",
                    &[ma.dtype, mb.dtype],
                    "expected numbers; use `cast`",
                ));
            }
            let f8 = |d| matches!(d, DType::F8E4M3 | DType::F8E5M2);
            let (mut a, mut b) = (self.clone(), rhs.clone());
            let dtype = if f8(ma.dtype) && f8(mb.dtype) {
                DType::F32
            } else {
                let d = DType::promote(ma.dtype, mb.dtype);
                (a, b) = (a.cast(d), b.cast(d));
                d
            };
            let precision = match (a.dtype(), b.dtype()) {
                (DType::F32, DType::F32) => precision,
                _ => MatmulPrecision::Exact,
            };
            // A right-hand matrix without batch axes turns the product into one tall one.
            if rb == 2 && ra > 2 {
                let rows: usize = ma.shape[..ra - 1].iter().product();
                let tall = a.reshape_to(shape_of("matmul", &[rows, k])?);
                let y = tall.matmul_node(
                    &b,
                    precision,
                    shape_of("matmul", &[rows, n])?,
                    out.unwrap_or(dtype),
                );
                return Ok(y.reshape_to(ma.shape.with(ra - 1, n)));
            }
            let batch = |s: &Shape| Shape::new(&s[..s.rank() - 2]).unwrap_or(Shape::scalar());
            let Some(lead) = batch(&ma.shape).broadcast(&batch(&mb.shape)) else {
                return Err(Error::shape(
                    "matmul",
                    &found,
                    "batch axes do not broadcast",
                ));
            };
            let full = |m: usize, n: usize| {
                let mut d = lead.to_vec();
                d.extend([m, n]);
                shape_of("matmul", &d)
            };
            let a = a.broadcast_to_shape(full(m, k)?);
            let b = b.broadcast_to_shape(full(k, n)?);
            Ok(a.matmul_node(&b, precision, full(m, n)?, out.unwrap_or(dtype)))
        })
    }

    fn matmul_node(
        &self,
        rhs: &Tensor,
        precision: MatmulPrecision,
        shape: Shape,
        dtype: DType,
    ) -> Tensor {
        Tensor::single(
            Op::Matmul(precision),
            Inputs::from_iter([self.clone(), rhs.clone()]),
            shape,
            dtype,
        )
    }

    /// The two-dimensional convolution of `[n, c, h, w]` with `weight` `[o, c / groups, kh, kw]`; f32 accumulation.
    #[track_caller]
    pub fn conv2d(&self, weight: &Tensor, conv: Conv2d) -> Tensor {
        Tensor::make(|| {
            let [n, c, h, w] = self.dims()?;
            let [o, cg, kh, kw] = weight.dims()?;
            let d = DType::promote(self.dtype(), weight.dtype());
            let found = [self.shape()?, weight.shape()?];
            if !d.is_float() {
                return Err(Error::dtype(
                    "conv2d",
                    &[self.dtype(), weight.dtype()],
                    "expected floats; use `cast`",
                ));
            }
            let g = conv.groups as usize;
            if g == 0 || c != cg * g || o % g != 0 {
                return Err(Error::shape(
                    "conv2d",
                    &found,
                    format!(
                        "{c} input channels in {g} groups need a weight [o, {}, kh, kw] with o a multiple of {g}",
                        c / g.max(1)
                    ),
                ));
            }
            let out = conv.output_size([h, w], [kh, kw]).ok_or_else(|| {
                Error::shape(
                    "conv2d",
                    &found,
                    "the kernel is larger than the padded input, or stride or dilation is 0",
                )
            })?;
            Ok(Tensor::single(
                Op::Conv2d(conv),
                Inputs::from_iter([self.cast(d), weight.cast(d)]),
                shape_of("conv2d", &[n, o, out[0], out[1]])?,
                d,
            ))
        })
    }

    /// The gradient of [`Tensor::conv2d`] with respect to an input of shape `input`, from its weight and the output's gradient.
    #[track_caller]
    pub fn conv2d_grad_input(
        weight: &Tensor,
        grad: &Tensor,
        conv: Conv2d,
        input: &[usize],
    ) -> Tensor {
        Tensor::make(|| {
            weight.valid()?;
            grad.valid()?;
            Ok(Tensor::single(
                Op::Conv2dGradInput(conv),
                Inputs::from_iter([weight.clone(), grad.clone()]),
                shape_of("conv2d", input)?,
                grad.dtype(),
            ))
        })
    }

    /// The gradient of [`Tensor::conv2d`] with respect to a weight of shape `weight`, from its input and the output's gradient.
    #[track_caller]
    pub fn conv2d_grad_weight(
        input: &Tensor,
        grad: &Tensor,
        conv: Conv2d,
        weight: &[usize],
    ) -> Tensor {
        Tensor::make(|| {
            input.valid()?;
            grad.valid()?;
            Ok(Tensor::single(
                Op::Conv2dGradWeight(conv),
                Inputs::from_iter([input.clone(), grad.clone()]),
                shape_of("conv2d", weight)?,
                grad.dtype(),
            ))
        })
    }

    /// The largest element of each window of `[n, c, h, w]`, and its index (I32) in the `[h, w]` plane.
    #[track_caller]
    pub fn max_pool2d(&self, pool: Pool2d) -> (Tensor, Tensor) {
        let t = Tensor::make(|| {
            let shape = self.pooled("max_pool2d", &pool)?;
            let outs = Outs::from_iter([
                Meta {
                    shape,
                    dtype: self.dtype(),
                },
                Meta {
                    shape,
                    dtype: DType::I32,
                },
            ]);
            Ok(Tensor::node(
                Op::MaxPool2d(pool),
                Inputs::from_iter([self.clone()]),
                outs,
                Label::current(),
            ))
        });
        (t.output(0), t.output(1))
    }

    /// The gradient of [`Tensor::max_pool2d`] for an input of shape `input`.
    #[track_caller]
    pub fn max_pool2d_grad(
        indices: &Tensor,
        grad: &Tensor,
        pool: Pool2d,
        input: &[usize],
    ) -> Tensor {
        Tensor::make(|| {
            indices.valid()?;
            grad.valid()?;
            Ok(Tensor::single(
                Op::MaxPool2dGrad(pool),
                Inputs::from_iter([indices.clone(), grad.clone()]),
                shape_of("max_pool2d", input)?,
                grad.dtype(),
            ))
        })
    }

    /// The mean of each window of `[n, c, h, w]`; f32 accumulation.
    #[track_caller]
    pub fn avg_pool2d(&self, pool: Pool2d) -> Tensor {
        Tensor::make(|| {
            let shape = self.pooled("avg_pool2d", &pool)?;
            Ok(Tensor::single(
                Op::AvgPool2d(pool),
                Inputs::from_iter([self.clone()]),
                shape,
                self.dtype(),
            ))
        })
    }

    /// The gradient of [`Tensor::avg_pool2d`] for an input of shape `input`.
    #[track_caller]
    pub fn avg_pool2d_grad(grad: &Tensor, pool: Pool2d, input: &[usize]) -> Tensor {
        Tensor::make(|| {
            grad.valid()?;
            Ok(Tensor::single(
                Op::AvgPool2dGrad(pool),
                Inputs::from_iter([grad.clone()]),
                shape_of("avg_pool2d", input)?,
                grad.dtype(),
            ))
        })
    }

    #[track_caller]
    fn pooled(&self, op: &'static str, pool: &Pool2d) -> Result<Shape> {
        let [n, c, h, w] = self.dims()?;
        if !self.dtype().is_float() {
            return Err(Error::dtype(
                op,
                &[self.dtype()],
                "expected floats; use `cast`",
            ));
        }
        let kernel = pool.kernel.map(|k| k as usize);
        let p = pool.padding;
        let wide = (0..2).any(|i| p[2 * i].max(p[2 * i + 1]) >= pool.kernel[i].max(1));
        let window = Conv2d {
            stride: pool.stride,
            padding: p,
            dilation: [1, 1],
            groups: 1,
        };
        let out = window.output_size([h, w], kernel).filter(|_| !wide).ok_or_else(|| {
            Error::shape(
                op,
                &[self.meta().shape],
                format!("a window {kernel:?} with padding {p:?} does not fit: it must be smaller than the padded input and larger than the padding"),
            )
        })?;
        shape_of(op, &[n, c, out[0], out[1]])
    }
}

impl Conv2d {
    /// A convolution with one stride and symmetric padding.
    pub fn new(stride: u32, padding: u32) -> Conv2d {
        Conv2d {
            stride: [stride; 2],
            padding: [padding; 4],
            dilation: [1; 2],
            groups: 1,
        }
    }

    /// Output height and width, or `None` if the kernel does not fit or a step is 0.
    pub fn output_size(&self, input: [usize; 2], kernel: [usize; 2]) -> Option<[usize; 2]> {
        let mut out = [0; 2];
        for i in 0..2 {
            let (s, d) = (self.stride[i] as usize, self.dilation[i] as usize);
            if s == 0 || d == 0 || kernel[i] == 0 {
                return None;
            }
            let padded = input[i] + self.padding[2 * i] as usize + self.padding[2 * i + 1] as usize;
            let reach = d * (kernel[i] - 1) + 1;
            out[i] = (padded.checked_sub(reach)?) / s + 1;
        }
        Some(out)
    }
}

impl Pool2d {
    /// Square windows side by side.
    pub fn new(kernel: u32) -> Pool2d {
        Pool2d {
            kernel: [kernel; 2],
            stride: [kernel; 2],
            padding: [0; 4],
            count_include_pad: true,
        }
    }
}
