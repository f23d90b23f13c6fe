//! Convolutions and pooling.
use super::code::Code;
use super::cx::{Compile, Cx, Kernel, Operand};
use super::tile::Results;
use bimetal_kernels::{conv, gemm, pool};
use bimetal_tensor::graph::{Conv2d, Pool2d};
use bimetal_tensor::plan::{Dense, Fused};
use bimetal_tensor::{DType, ErrorKind, Result, Shape};

fn four(s: &[usize], cx: &Compile<'_>) -> Result<[usize; 4]> {
    cx.check(
        s.len() == 4,
        "an operand of a convolution or pooling has not four axes",
    )?;
    Ok([s[0], s[1], s[2], s[3]])
}

fn pair(v: [u32; 2]) -> [usize; 2] {
    v.map(|n| n as usize)
}

fn padding(p: [u32; 4]) -> [[usize; 2]; 2] {
    [pair([p[0], p[1]]), pair([p[2], p[3]])]
}

/// The sizes of a convolution, which those of its three operands must match.
fn sizes(
    attributes: &Conv2d,
    x: &Shape,
    w: &Shape,
    y: &Shape,
    cx: &Compile<'_>,
) -> Result<conv::Conv2d> {
    let (x, w, y) = (four(x, cx)?, four(w, cx)?, four(y, cx)?);
    let c = conv::Conv2d {
        batch: x[0],
        channels: x[1],
        input: [x[2], x[3]],
        filters: w[0],
        kernel: [w[2], w[3]],
        stride: pair(attributes.stride),
        padding: padding(attributes.padding),
        dilation: pair(attributes.dilation),
        groups: attributes.groups as usize,
    };
    let positive = |v: [usize; 2]| v[0] > 0 && v[1] > 0;
    cx.check(
        positive(c.kernel) && positive(c.stride) && positive(c.dilation) && c.groups > 0,
        "a size of a convolution is 0",
    )?;
    let [oh, ow] = c.output();
    cx.check(
        y == [x[0], w[0], oh, ow]
            && w[1] * c.groups == x[1]
            && w[0].is_multiple_of(c.groups)
            && x[1].is_multiple_of(c.groups),
        "sizes of a convolution do not match",
    )?;
    Ok(c)
}

fn view(cx: &Cx<'_>, d: &Operand, compute: DType) -> conv::View4 {
    let strides = d.shape.strides();
    conv::View4 {
        ptr: cx.ptr(d.buf),
        dtype: d.dtype,
        round_to: (compute != d.dtype).then_some(compute),
        strides: std::array::from_fn(|i| strides[i]),
    }
}

enum Kind {
    Forward(Box<Code>),
    GradInput(Operand),
    GradWeight(Operand),
}

/// A convolution or one of its gradients.
pub(crate) struct Conv {
    conv: conv::Conv2d,
    kind: Kind,
    a: Operand,
    b: Operand,
    /// The dtype the second operand is rounded to.
    compute: DType,
}

impl Conv {
    pub(crate) fn forward(
        attributes: &Conv2d,
        input: &Dense,
        weight: &Dense,
        compute: DType,
        shape: &Shape,
        epilogue: &Fused,
        cx: &Compile<'_>,
    ) -> Result<Conv> {
        Ok(Conv {
            conv: sizes(attributes, &input.shape, &weight.shape, shape, cx)?,
            kind: Kind::Forward(Box::new(Code::new(epilogue, shape, cx)?)),
            a: cx.dense(input)?,
            b: cx.dense(weight)?,
            compute,
        })
    }

    pub(crate) fn grad_input(
        attributes: &Conv2d,
        weight: &Dense,
        compute: DType,
        grad: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Conv> {
        Ok(Conv {
            conv: sizes(attributes, &output.shape, &weight.shape, &grad.shape, cx)?,
            kind: Kind::GradInput(cx.dense(output)?),
            a: cx.dense(grad)?,
            b: cx.dense(weight)?,
            compute,
        })
    }

    pub(crate) fn grad_weight(
        attributes: &Conv2d,
        input: &Dense,
        grad: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Conv> {
        Ok(Conv {
            conv: sizes(attributes, &input.shape, &output.shape, &grad.shape, cx)?,
            kind: Kind::GradWeight(cx.dense(output)?),
            a: cx.dense(input)?,
            b: cx.dense(grad)?,
            compute: grad.dtype,
        })
    }
}

impl Kernel for Conv {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        let c = &self.conv;
        let (a, b) = (
            view(cx, &self.a, self.a.dtype),
            view(cx, &self.b, self.compute),
        );
        let [oh, ow] = c.output();
        let group = c.channels / c.groups;
        let dense = |d: &Operand, m: usize, n: usize| {
            gemm::Output::Dense(gemm::Dense::new(cx.ptr(d.buf), d.dtype, m, n))
        };
        // SAFETY: operands and results were checked when the plan was compiled, and share no memory.
        unsafe {
            match &self.kind {
                Kind::Forward(epilogue) => {
                    let results = Results {
                        epilogue,
                        cx,
                        m: c.filters,
                        n: oh * ow,
                    };
                    let wide = self.a.dtype == DType::F64 || self.compute == DType::F64;
                    results.product(wide, |out| conv::conv2d(c, a, b, out));
                }
                Kind::GradInput(d) => {
                    let out = dense(d, c.channels, c.input[0] * c.input[1]);
                    conv::conv2d_input_grad(c, a, b, out);
                }
                Kind::GradWeight(d) => {
                    let out = dense(d, c.filters, group * c.kernel[0] * c.kernel[1]);
                    conv::conv2d_weight_grad(c, a, b, out);
                }
            }
        }
        Ok(())
    }

    fn work(&self) -> usize {
        let c = &self.conv;
        let [oh, ow] = c.output();
        let taps = c.channels / c.groups * c.kernel[0] * c.kernel[1];
        (c.batch * c.filters * oh * ow).saturating_mul(taps / 8 + 1)
    }
}

enum PoolKind {
    Max(Option<Operand>, Option<Operand>),
    MaxGrad(Operand, Operand),
    Avg(Operand),
    AvgGrad(Operand),
}

/// A pooling or its gradient.
pub(crate) struct Pool {
    pool: pool::Pool2d,
    kind: PoolKind,
    /// The operand, or the gradient of the result.
    a: Operand,
}

impl Pool {
    /// `big` and `small` are the shapes before and after.
    fn new(
        attributes: &Pool2d,
        kind: PoolKind,
        big: &Shape,
        small: &Shape,
        a: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Pool> {
        let (b, s) = (four(big, cx)?, four(small, cx)?);
        let p = pool::Pool2d {
            planes: b[0] * b[1],
            input: [b[2], b[3]],
            kernel: pair(attributes.kernel),
            stride: pair(attributes.stride),
            padding: padding(attributes.padding),
            count_include_pad: attributes.count_include_pad,
        };
        let positive = |v: [usize; 2]| v[0] > 0 && v[1] > 0;
        cx.check(
            positive(p.kernel) && positive(p.stride),
            "a size of a pooling is 0",
        )?;
        let [oh, ow] = p.output();
        cx.check(s == [b[0], b[1], oh, ow], "sizes of a pooling do not match")?;
        Ok(Pool {
            pool: p,
            kind,
            a: cx.dense(a)?,
        })
    }

    pub(crate) fn max(
        attributes: &Pool2d,
        input: &Dense,
        values: Option<&Dense>,
        indices: Option<&Dense>,
        cx: &Compile<'_>,
    ) -> Result<Pool> {
        let small = values.or(indices).map_or(input.shape, |d| d.shape);
        let same = values.is_none_or(|d| d.dtype == input.dtype && d.shape == small);
        let index = indices.is_none_or(|d| d.dtype == DType::I32 && d.shape == small);
        cx.check(same && index, "results of a pooling do not match")?;
        let dense = |d: Option<&Dense>| d.map(|d| cx.dense(d)).transpose();
        let kind = PoolKind::Max(dense(values)?, dense(indices)?);
        Pool::new(attributes, kind, &input.shape, &small, input, cx)
    }

    pub(crate) fn max_grad(
        attributes: &Pool2d,
        indices: &Dense,
        grad: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Pool> {
        cx.check(
            indices.dtype == DType::I32
                && indices.shape == grad.shape
                && grad.dtype == output.dtype,
            "operands of a pooling's gradient do not match",
        )?;
        let kind = PoolKind::MaxGrad(cx.dense(indices)?, cx.dense(output)?);
        Pool::new(attributes, kind, &output.shape, &grad.shape, grad, cx)
    }

    pub(crate) fn avg(
        attributes: &Pool2d,
        input: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Pool> {
        cx.check(input.dtype == output.dtype, "dtypes of a pooling differ")?;
        let kind = PoolKind::Avg(cx.dense(output)?);
        Pool::new(attributes, kind, &input.shape, &output.shape, input, cx)
    }

    pub(crate) fn avg_grad(
        attributes: &Pool2d,
        grad: &Dense,
        output: &Dense,
        cx: &Compile<'_>,
    ) -> Result<Pool> {
        cx.check(grad.dtype == output.dtype, "dtypes of a pooling differ")?;
        let kind = PoolKind::AvgGrad(cx.dense(output)?);
        Pool::new(attributes, kind, &output.shape, &grad.shape, grad, cx)
    }
}

impl Kernel for Pool {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        let (p, dtype) = (&self.pool, self.a.dtype);
        let a = cx.ptr(self.a.buf).cast_const();
        let ptr = |d: &Operand| cx.ptr(d.buf);
        let or_null = |d: &Option<Operand>| d.as_ref().map_or(std::ptr::null_mut(), ptr);
        // SAFETY: sizes and dtypes were checked when the plan was compiled, and operands share no memory with results.
        unsafe {
            match &self.kind {
                PoolKind::Max(values, indices) => {
                    pool::max_pool2d(p, dtype, a, or_null(values), or_null(indices).cast());
                }
                PoolKind::MaxGrad(indices, out) => {
                    pool::max_pool2d_grad(p, dtype, ptr(indices).cast(), a, ptr(out));
                }
                PoolKind::Avg(out) => pool::avg_pool2d(p, dtype, a, ptr(out)),
                PoolKind::AvgGrad(out) => pool::avg_pool2d_grad(p, dtype, a, ptr(out)),
            }
        }
        Ok(())
    }

    fn work(&self) -> usize {
        let [oh, ow] = self.pool.output();
        self.pool.planes * oh * ow * self.pool.kernel[0] * self.pool.kernel[1]
    }
}
