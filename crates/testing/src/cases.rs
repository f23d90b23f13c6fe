//! One maker per operation: random shapes and attributes, the range of its inputs, and how exact it must be.
mod composites;

use crate::random::Gen;
use bimetal_tensor::graph::{Conv2d, MatmulPrecision, Pool2d, RandomKey, Unary};
use bimetal_tensor::{CastMode, DType, Tensor};

/// An input of a case.
#[derive(Clone, Debug)]
pub enum Input {
    /// Of the dtype under test.
    Float {
        shape: Vec<usize>,
        range: (f64, f64),
    },
    /// f32 (f64 where f64 is under test).
    Wide {
        shape: Vec<usize>,
        range: (f64, f64),
    },
    /// I32 indices.
    Index { shape: Vec<usize>, below: usize },
    /// Bool.
    Bool { shape: Vec<usize> },
}

impl Input {
    pub fn shape(&self) -> &[usize] {
        match self {
            Input::Float { shape, .. }
            | Input::Wide { shape, .. }
            | Input::Index { shape, .. }
            | Input::Bool { shape } => shape,
        }
    }
}

type Build = Box<dyn Fn(&[Tensor]) -> Vec<Tensor>>;

/// One test case.
pub struct Case {
    pub name: &'static str,
    pub inputs: Vec<Input>,
    pub build: Build,
    pub dtypes: &'static [DType],
    /// Bound on the sum of magnitudes that an element accumulates.
    pub scale: f64,
    /// Allowed error in units in the last place of the result's dtype.
    pub ulps: f64,
    pub differentiable: bool,
}

const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
const NARROW: &[DType] = &[DType::F8E4M3, DType::F8E5M2];
const F64: &[DType] = &[DType::F64];
const F32: &[DType] = &[DType::F32];

fn case(
    name: &'static str,
    inputs: Vec<Input>,
    build: impl Fn(&[Tensor]) -> Vec<Tensor> + 'static,
) -> Case {
    Case {
        name,
        inputs,
        build: Box::new(build),
        dtypes: FLOATS,
        scale: 0.0,
        ulps: 1.0,
        differentiable: true,
    }
}

fn float(shape: &[usize], lo: f64, hi: f64) -> Input {
    Input::Float {
        shape: shape.to_vec(),
        range: (lo, hi),
    }
}

type Maker = Box<dyn Fn(&mut Gen) -> Case>;

fn unary(u: Unary, lo: f64, hi: f64, smooth: bool) -> Maker {
    Box::new(move |g| {
        let rank = g.below(4);
        let s = g.shape(rank, 7);
        let mut c = case(u.name(), vec![float(&s, lo, hi)], move |x| {
            vec![x[0].unary(u)]
        });
        c.ulps = 4.0;
        // Derivatives cross zero by cancellation of terms of size 1.
        c.scale = if smooth { 0.25 } else { 0.0 };
        c.differentiable = smooth;
        c
    })
}

fn two(g: &mut Gen) -> (Vec<usize>, Vec<usize>) {
    let rank = 1 + g.below(3);
    let a = g.shape(rank, 6);
    let mut b: Vec<usize> = a
        .iter()
        .map(|&n| if g.chance(0.3) { 1 } else { n })
        .collect();
    let cut = g.below(rank + 1);
    if g.chance(0.4) {
        b.drain(..cut);
    }
    (a, b)
}

fn binary(
    name: &'static str,
    range: (f64, f64),
    ulps: f64,
    smooth: bool,
    f: fn(&Tensor, &Tensor) -> Tensor,
) -> Maker {
    Box::new(move |g| {
        let (a, b) = two(g);
        let swap = g.chance(0.5);
        let mut c = case(
            name,
            vec![float(&a, range.0, range.1), float(&b, range.0, range.1)],
            move |x| {
                vec![if swap {
                    f(&x[1], &x[0])
                } else {
                    f(&x[0], &x[1])
                }]
            },
        );
        c.ulps = ulps;
        c.differentiable = smooth;
        c
    })
}

/// All makers.
pub fn all() -> Vec<Maker> {
    let mut v: Vec<Maker> = Vec::new();
    for (u, lo, hi, smooth) in [
        (Unary::Neg, -3.0, 3.0, true),
        (Unary::Abs, 0.1, 3.0, true),
        (Unary::Sign, -3.0, 3.0, false),
        (Unary::Sqrt, 0.1, 9.0, true),
        (Unary::Rsqrt, 0.1, 9.0, true),
        (Unary::Recip, 0.3, 4.0, true),
        (Unary::Exp, -4.0, 4.0, true),
        (Unary::Expm1, -2.0, 3.0, true),
        (Unary::Log, 0.05, 20.0, true),
        (Unary::Log1p, -0.5, 20.0, true),
        (Unary::Sin, -6.0, 6.0, true),
        (Unary::Cos, -6.0, 6.0, true),
        (Unary::Tanh, -4.0, 4.0, true),
        (Unary::Sigmoid, -8.0, 8.0, true),
        (Unary::Erf, -3.0, 3.0, true),
        (Unary::Relu, 0.1, 3.0, true),
        (Unary::Relu, -3.0, 3.0, false),
        (Unary::Silu, -6.0, 6.0, true),
        (Unary::Gelu, -4.0, 4.0, true),
        (Unary::GeluTanh, -4.0, 4.0, true),
        (Unary::Softplus, -8.0, 8.0, true),
        (Unary::Floor, -9.0, 9.0, false),
        (Unary::Ceil, -9.0, 9.0, false),
        (Unary::Round, -9.0, 9.0, false),
        (Unary::Trunc, -9.0, 9.0, false),
        (Unary::Square, -3.0, 3.0, true),
        (Unary::GeluGrad, -3.0, 3.0, true),
        (Unary::GeluTanhGrad, -3.0, 3.0, true),
        (Unary::SiluGrad, -4.0, 4.0, true),
        (Unary::IsFinite, -9.0, 9.0, false),
        (Unary::IsNan, -9.0, 9.0, false),
    ] {
        v.push(unary(u, lo, hi, smooth));
    }
    v.push(binary("add", (-3.0, 3.0), 1.0, true, |a, b| a + b));
    v.push(binary("sub", (-3.0, 3.0), 1.0, true, |a, b| a - b));
    v.push(binary("mul", (-3.0, 3.0), 1.0, true, |a, b| a * b));
    v.push(binary("div", (0.4, 3.0), 1.0, true, |a, b| a / b));
    v.push(binary("maximum", (-3.0, 3.0), 1.0, true, |a, b| {
        a.maximum(b)
    }));
    v.push(binary("minimum", (-3.0, 3.0), 1.0, true, |a, b| {
        a.minimum(b)
    }));
    v.push(binary("pow", (0.3, 2.5), 4.0, true, |a, b| a.pow(b)));
    v.push(binary("remainder", (0.5, 3.0), 4.0, false, |a, b| {
        a.remainder(b)
    }));
    v.push(binary("compare", (-2.0, 2.0), 0.0, false, |a, b| {
        a.lt(b)
            .logical_or(a.eq(b))
            .logical_xor(a.ge(b))
            .logical_and(a.ne(b))
    }));
    v.push(Box::new(|g| {
        let s = g.shape(2, 6);
        case(
            "select",
            vec![
                Input::Bool { shape: s.clone() },
                float(&s, -3.0, 3.0),
                float(&s[1..], -3.0, 3.0),
            ],
            |x| vec![x[0].select(&x[1], &x[2])],
        )
    }));
    v.push(Box::new(|g| {
        let s = g.shape(2, 6);
        case(
            "fma",
            vec![
                float(&s, -3.0, 3.0),
                float(&s, -3.0, 3.0),
                float(&s[1..], -3.0, 3.0),
            ],
            |x| vec![x[0].fma(&x[1], &x[2])],
        )
    }));
    v.push(Box::new(|g| {
        let s = g.shape(2, 9);
        let mut c = case("scalar operands", vec![float(&s, -3.0, 3.0)], |x| {
            vec![
                (&x[0] * 0.3 + 1e-8) / 0.7,
                x[0].maximum(0.1),
                1.7 - &x[0],
                x[0].clamp(-0.3, 0.9),
            ]
        });
        c.ulps = 3.0;
        c.differentiable = false;
        c
    }));
    v.push(Box::new(|g| {
        let s = g.shape(2, 9);
        let mut c = case("casts", vec![float(&s, -300.0, 300.0)], |x| {
            use DType::*;
            [F32, F64, F16, BF16, F8E4M3, F8E5M2, I32, I64, U8, U32, Bool]
                .iter()
                .flat_map(|&d| {
                    let y = x[0].cast(d);
                    let back = y.cast(F32);
                    [y, back]
                })
                .chain([
                    x[0].cast(I32).cast(F16),
                    x[0].cast(I64).cast(BF16),
                    x[0].cast(I32).cast(U8),
                    x[0].cast(U8).cast(F8E5M2),
                    (x[0].cast(F32) * 2e4).cast_with(F16, bimetal_tensor::CastMode::Saturating),
                ])
                .collect()
        });
        c.ulps = 0.0;
        c.differentiable = false;
        c
    }));
    v.push(Box::new(|g| {
        let s = g.shape(3, 5);
        case("views", vec![float(&s, -3.0, 3.0)], |x| {
            let t = &x[0];
            vec![
                t.permute(&[2, 0, 1]).flatten(0..=1),
                t.transpose(0, 2).reshape(&[-1]),
                t.flip(1).t().flatten(0..=2),
                t.unsqueeze(1)
                    .broadcast_to(&[
                        t.dims::<3>().unwrap_or_default()[0],
                        2,
                        t.dims::<3>().unwrap_or_default()[1],
                        t.dims::<3>().unwrap_or_default()[2],
                    ])
                    .flatten(1..=2),
            ]
        })
    }));
    v.push(Box::new(|g| {
        let s = g.shape(3, 5);
        let (a, before, after) = (g.below(3) as isize, g.below(3), g.below(3));
        case("pad", vec![float(&s, -3.0, 3.0)], move |x| {
            vec![x[0].pad(a, before, after).square()]
        })
    }));
    v.push(Box::new(|g| {
        let s = g.shape(3, 4);
        let a = g.below(3);
        let mut t = s.clone();
        t[a] = 1 + g.below(4);
        case(
            "concat",
            vec![float(&s, -3.0, 3.0), float(&t, -3.0, 3.0)],
            move |x| {
                let y = Tensor::concat(&[&x[0], &x[1], &(&x[0] * 2)], a as isize);
                vec![y.square(), Tensor::stack(&[&x[0], &x[0].neg()], -1)]
            },
        )
    }));
    v.push(Box::new(|g| {
        let s = vec![2 + g.below(3), 6, 4];
        case("split", vec![float(&s, -2.0, 2.0)], |x| {
            let p = x[0].split(3, 1);
            vec![&p[0] * &p[1] + &p[2]]
        })
    }));
    for (name, op) in [
        ("sum", bimetal_tensor::graph::ReduceOp::Sum),
        ("mean", bimetal_tensor::graph::ReduceOp::Mean),
        ("max", bimetal_tensor::graph::ReduceOp::Max),
        ("min", bimetal_tensor::graph::ReduceOp::Min),
        ("prod", bimetal_tensor::graph::ReduceOp::Prod),
    ] {
        v.push(Box::new(move |g| {
            let rank = 1 + g.below(4);
            let s = if name == "prod" {
                g.shape(rank, 3)
            } else {
                g.shape(rank, 9)
            };
            let axes: Vec<isize> = (0..rank as isize).filter(|_| g.chance(0.5)).collect();
            let n: usize = s.iter().product();
            let (fused, keep) = (g.chance(0.5), g.chance(0.5));
            let mut c = case(name, vec![float(&s, -1.3, 1.3)], move |x| {
                let t = if fused {
                    &x[0] * &x[0] - &x[0]
                } else {
                    x[0].clone()
                };
                let y = t.reduce(op, &axes, keep);
                vec![if fused { y.square() } else { y }]
            });
            c.scale = if matches!(
                op,
                bimetal_tensor::graph::ReduceOp::Max | bimetal_tensor::graph::ReduceOp::Min
            ) {
                0.0
            } else {
                9.0 * n as f64
            };
            c.ulps = 2.5;
            c
        }));
    }
    v.push(Box::new(|g| {
        let s = vec![2 + g.below(4), 2 + g.below(40)];
        let mut c = case("var", vec![float(&s, 1.0, 2.0)], |x| {
            vec![x[0].var(&[-1], 1, false), x[0].logsumexp(0, true)]
        });
        c.scale = 40.0;
        c.ulps = 2.0;
        c
    }));
    v.push(Box::new(|g| {
        let s = vec![1 + g.below(5), 1 + g.below(5), 1 + g.below(9)];
        let a = g.below(3) as isize;
        let mut c = case("argmax", vec![float(&s, -3.0, 3.0)], move |x| {
            vec![x[0].argmax(a, false), x[0].argmin(a, true)]
        });
        c.differentiable = false;
        c
    }));
    v.push(Box::new(|g| {
        let (m, n, k) = (1 + g.below(40), 1 + g.below(40), 1 + g.below(50));
        let mut c = case(
            "matmul",
            vec![
                float(&[m, k], -1.0, 1.0),
                float(&[k, n], -1.0, 1.0),
                float(&[n], -1.0, 1.0),
            ],
            |x| vec![x[0].matmul(&x[1]), (x[0].matmul(&x[1]) + &x[2]).gelu()],
        );
        c.scale = k as f64;
        c.ulps = 4.0;
        if m * n * k > 4000 {
            c.differentiable = false;
        }
        c
    }));
    v.push(Box::new(|g| {
        let (b, h, m, n, k) = (
            1 + g.below(3),
            1 + g.below(3),
            1 + g.below(9),
            1 + g.below(9),
            1 + g.below(9),
        );
        let one = g.chance(0.4);
        let rhs = if one {
            vec![1, h, n, k]
        } else {
            vec![b, h, n, k]
        };
        let mut c = case(
            "batched matmul",
            vec![float(&[b, h, m, k], -1.0, 1.0), float(&rhs, -1.0, 1.0)],
            |x| vec![x[0].matmul(&x[1].t())],
        );
        c.scale = k as f64;
        c
    }));
    v.push(Box::new(|g| {
        let rank = g.below(4);
        let s = g.shape(rank, 9);
        let stream = g.below(1 << 30) as u64;
        let far = if g.chance(0.5) { 70000.0 } else { 0.01 };
        let mut c = case("cast_stochastic", vec![float(&s, -far, far)], move |x| {
            let key = RandomKey::Value { stream, micro: 1 };
            [DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2]
                .map(|d| x[0].cast(DType::F32).cast_stochastic(d, key, None))
                .to_vec()
        });
        c.dtypes = F32;
        c.ulps = 0.0;
        c.differentiable = false;
        c
    }));
    v.push(Box::new(|g| {
        let (m, n, k) = (1 + g.below(20), 1 + g.below(20), 1 + g.below(40));
        let mut c = case(
            "matmul in other precisions",
            vec![float(&[m, k], -1.0, 1.0), float(&[k, n], -1.0, 1.0)],
            |x| {
                [MatmulPrecision::Tf32, MatmulPrecision::Bf16x3]
                    .map(|p| x[0].matmul_with(&x[1], p, None))
                    .to_vec()
            },
        );
        c.dtypes = F32;
        c.scale = k as f64;
        c.differentiable = false;
        c
    }));
    v.push(Box::new(|g| {
        let (m, n, k) = (1 + g.below(12), 1 + g.below(12), 1 + g.below(20));
        let mut c = case(
            "f8 matmul",
            vec![float(&[m, k], -1.0, 1.0), float(&[k, n], -1.0, 1.0)],
            |x| vec![x[0].matmul(&x[1])],
        );
        c.dtypes = NARROW;
        c.scale = k as f64;
        c.differentiable = false;
        c
    }));
    // The products of a linear layer in 8 bits, forward and backward: scaled, cast, multiplied, divided by the scales.
    v.push(Box::new(|g| {
        let (m, n, k) = (1 + g.below(20), 1 + g.below(20), 1 + g.below(30));
        let mut c = case(
            "scaled f8 matmul",
            vec![
                float(&[m, k], -30.0, 30.0),
                float(&[n, k], -1.0, 1.0),
                float(&[m, n], -1.0, 1.0),
            ],
            |x| {
                let quantize = |t: &Tensor, largest: f64, to| {
                    let scale = largest / t.abs().max(&[], false);
                    let q = (t * &scale).cast_with(to, CastMode::Saturating);
                    (q, scale.recip())
                };
                let (x8, ix) = quantize(&x[0], 448.0, DType::F8E4M3);
                let (w8, iw) = quantize(&x[1], 448.0, DType::F8E4M3);
                let (g8, ig) = quantize(&x[2], 57344.0, DType::F8E5M2);
                let back = g8.matmul(&w8) * &ig * &iw;
                let weight = g8.t().matmul(&x8) * &ig * &ix;
                let y = x8.matmul(&w8.t()) * ix * iw;
                vec![y.cast(DType::BF16), y, back, weight]
            },
        );
        c.dtypes = F32;
        c.scale = 30.0 * k.max(m).max(n) as f64;
        c.differentiable = false;
        c
    }));
    v.push(Box::new(|g| {
        let groups = 1 + g.below(2);
        let (n, c_in, o) = (
            1 + g.below(3),
            groups * (1 + g.below(3)),
            groups * (1 + g.below(3)),
        );
        let (kh, kw) = (1 + g.below(3), 1 + g.below(3));
        let conv = Conv2d {
            stride: [1 + g.below(2) as u32, 1 + g.below(2) as u32],
            padding: [
                g.below(2) as u32,
                g.below(2) as u32,
                g.below(2) as u32,
                g.below(2) as u32,
            ],
            dilation: [1 + g.below(2) as u32, 1],
            groups: groups as u32,
        };
        let (h, w) = (5 + g.below(4), 4 + g.below(4));
        let mut c = case(
            "conv2d",
            vec![
                float(&[n, c_in, h, w], -1.0, 1.0),
                float(&[o, c_in / groups, kh, kw], -1.0, 1.0),
                float(&[o, 1, 1], -1.0, 1.0),
            ],
            move |x| {
                vec![
                    x[0].conv2d(&x[1], conv),
                    (x[0].conv2d(&x[1], conv) + &x[2]).tanh(),
                ]
            },
        );
        c.scale = (c_in * kh * kw) as f64;
        c.ulps = 3.0;
        c
    }));
    v.push(Box::new(|g| {
        let s = [
            1 + g.below(3),
            1 + g.below(3),
            5 + g.below(4),
            5 + g.below(4),
        ];
        let pool = Pool2d {
            kernel: [2 + g.below(2) as u32, 2],
            stride: [1 + g.below(3) as u32, 2],
            padding: [g.below(2) as u32, g.below(2) as u32, g.below(2) as u32, 0],
            count_include_pad: g.chance(0.5),
        };
        let mut c = case("pooling", vec![float(&s, -2.0, 2.0)], move |x| {
            let (v, i) = x[0].max_pool2d(pool);
            vec![v, i, x[0].avg_pool2d(pool)]
        });
        c.scale = 18.0;
        c
    }));
    v.push(Box::new(|g| {
        let (n, d) = (2 + g.below(6), 1 + g.below(5));
        let s = g.shape(2, 5);
        let a = g.below(2);
        let shape = if a == 0 { vec![n, d] } else { vec![d, n] };
        let mut c = case(
            "take",
            vec![
                float(&shape, -2.0, 2.0),
                Input::Index { shape: s, below: n },
            ],
            move |x| vec![x[0].take(&x[1], a as isize)],
        );
        c.scale = 50.0;
        c
    }));
    v.push(Box::new(|g| {
        let (n, d, k) = (2 + g.below(6), 1 + g.below(5), 1 + g.below(7));
        let mut c = case(
            "gather",
            vec![
                float(&[n, d], -2.0, 2.0),
                Input::Index {
                    shape: vec![k, d],
                    below: n,
                },
                float(&[k, d], -2.0, 2.0),
            ],
            move |x| {
                vec![
                    x[0].gather(&x[1], 0),
                    x[2].scatter_add(&x[1], 0, n),
                    x[2].take_grad(&x[1].index(1, 0), 0, n),
                ]
            },
        );
        c.scale = 20.0;
        c
    }));
    v.push(Box::new(|g| {
        let s = vec![1 + g.below(4), 1 + g.below(12), 1 + g.below(4)];
        let (a, r) = (g.below(3) as isize, g.chance(0.5));
        let mut c = case("cumsum", vec![float(&s, -1.0, 1.0)], move |x| {
            vec![x[0].cumsum(a, r)]
        });
        c.scale = 12.0;
        c
    }));
    v.push(Box::new(|g| {
        let s = vec![1 + g.below(4), 2 + g.below(12)];
        let k = 1 + g.below(s[1]);
        case("sort", vec![float(&s, -3.0, 3.0)], move |x| {
            let (a, i) = x[0].sort(false);
            let (b, j) = x[0].topk(k);
            vec![a, i, b, j]
        })
    }));
    composites::add(&mut v);
    v.push(Box::new(|g| {
        let s = g.shape(2, 30);
        let mut c = case("barrier", vec![float(&s, -1.0, 1.0)], |x| {
            let y = x[0].exp();
            let b = Tensor::barrier(&[&y, &x[0]], &x[0].sum_all());
            vec![&b[0] * &b[1]]
        });
        c.dtypes = F64;
        c.ulps = 2.0;
        c
    }));
    v
}
