//! Plans written by hand: what the scheduler may ask for, and what it must not.
use crate::backend::CpuBackend;
use bimetal_tensor::graph::{Binary, Distribution, ReduceOp, Unary};
use bimetal_tensor::plan::*;
use bimetal_tensor::{
    Backend, Bindings, Buffer, CastMode, DType, Element, ErrorKind, ExecError, Label, Shape,
    Strides,
};
use std::sync::Arc;

fn shape(d: &[usize]) -> Shape {
    Shape::new(d).unwrap()
}

fn access(buf: BufId, offset: usize, strides: &[isize], dtype: DType) -> Access {
    Access {
        buf,
        offset,
        strides: Strides::new(strides),
        dtype,
    }
}

fn dense(buf: BufId, d: &[usize], dtype: DType) -> Access {
    access(buf, 0, &shape(d).strides(), dtype)
}

fn desc(place: Place, numel: usize, dtype: DType) -> BufDesc {
    BufDesc {
        place,
        numel,
        dtype,
    }
}

fn plan(buffers: Vec<BufDesc>, kernels: Vec<Kernel>) -> Plan {
    let count = |f: fn(&Place) -> Option<u32>| {
        let n = buffers.iter().filter_map(|b| f(&b.place)).max();
        n.map_or(0, |n| n as usize + 1)
    };
    let arena = buffers.iter().map(|b| match b.place {
        Place::Arena(at) => at + b.bytes(),
        _ => 0,
    });
    Plan {
        arena_bytes: arena.max().unwrap_or(0),
        leaves: count(|p| {
            if let Place::Leaf(n) = p {
                Some(*n)
            } else {
                None
            }
        }),
        slots: count(|p| {
            if let Place::Slot(n) = p {
                Some(*n)
            } else {
                None
            }
        }),
        outputs: count(|p| {
            if let Place::Output(n) = p {
                Some(*n)
            } else {
                None
            }
        }),
        first_write: kernels.len(),
        steps: kernels
            .into_iter()
            .map(|kernel| Step { kernel, node: 0 })
            .collect(),
        labels: vec![Label::current()],
        scalars: 8,
        buffers,
        saved_bytes: 0,
    }
}

fn map(
    domain: &[usize],
    instrs: Vec<Instr>,
    out: &[Reg],
    inputs: Vec<Access>,
    outputs: Vec<Access>,
) -> Kernel {
    Kernel::Map {
        domain: shape(domain),
        fused: fused(instrs, out, inputs, outputs),
    }
}

fn fused(instrs: Vec<Instr>, out: &[Reg], inputs: Vec<Access>, outputs: Vec<Access>) -> Fused {
    Fused {
        program: Program {
            instrs,
            outputs: out.to_vec(),
        },
        inputs,
        outputs,
    }
}

struct Rig(CpuBackend);

impl Rig {
    fn buffer<T: Element>(&self, v: &[T]) -> Buffer {
        let b = self.0.alloc(size_of_val(v)).unwrap();
        self.0.upload(&b, T::as_bytes(v)).unwrap();
        b
    }

    fn read<T: Element>(&self, b: &Buffer, n: usize) -> Vec<T> {
        let mut bytes = vec![0; n * size_of::<T>()];
        self.0.download(b, &mut bytes).unwrap();
        T::vec_from_bytes(&bytes).unwrap()
    }

    fn run(
        &self,
        plan: &Arc<Plan>,
        leaves: &[Buffer],
        slots: &[Buffer],
        outputs: &[Buffer],
    ) -> Result<(), ExecError> {
        self.0.compile(plan).unwrap().run(&Bindings {
            leaves,
            slots,
            outputs,
            scalars: &[0.25, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        })
    }
}

fn rig(threads: usize) -> Rig {
    Rig(CpuBackend::new(Some(threads)))
}

use Instr::Load;
const ADD: fn(Reg, Reg) -> Instr = |a, b| Instr::Binary {
    op: Binary::Add,
    a,
    b,
    ty: DType::F32,
};

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 1009) as f32 * 0.5 - 3.0).collect()
}

/// Transposed, reversed, broadcast and offset inputs into a slice of a bigger output, against an index loop.
#[test]
fn strided_accesses_find_their_elements() {
    for [m, n] in [[1, 1], [3, 5], [40, 70], [2, 3000], [3000, 2], [700, 33]] {
        let (a, t, row, col) = (ramp(m * n), ramp(m * n + 5), ramp(n), ramp(m));
        let (mi, ni) = (m as isize, n as isize);
        let wide = n + 7;
        let p = plan(
            vec![
                desc(Place::Leaf(0), m * n, DType::F32),
                desc(Place::Leaf(1), m * n + 5, DType::F32),
                desc(Place::Leaf(2), n, DType::F32),
                desc(Place::Leaf(3), m, DType::F32),
                desc(Place::Output(0), m * wide, DType::F32),
            ],
            vec![
                Kernel::Zero { output: 4 },
                map(
                    &[m, n],
                    vec![
                        Load { input: 0 },
                        Load { input: 1 },
                        Load { input: 2 },
                        Load { input: 3 },
                        ADD(0, 1),
                        ADD(2, 3),
                        ADD(4, 5),
                    ],
                    &[6],
                    vec![
                        access(0, m * n - 1, &[-ni, -1], DType::F32),
                        access(1, 5, &[1, mi], DType::F32),
                        access(2, 0, &[0, 1], DType::F32),
                        access(3, 0, &[1, 0], DType::F32),
                    ],
                    vec![access(4, 3, &[wide as isize, 1], DType::F32)],
                ),
            ],
        );
        let mut want = vec![0.0; m * wide];
        for i in 0..m {
            for j in 0..n {
                want[i * wide + j + 3] =
                    (a[m * n - 1 - i * n - j] + t[5 + j * m + i]) + (row[j] + col[i]);
            }
        }
        for threads in [1, 3] {
            let r = rig(threads);
            let leaves = [r.buffer(&a), r.buffer(&t), r.buffer(&row), r.buffer(&col)];
            let out = r.buffer(&vec![9.0f32; m * wide]);
            r.run(
                &Arc::new(p.clone()),
                &leaves,
                &[],
                std::slice::from_ref(&out),
            )
            .unwrap();
            assert_eq!(r.read::<f32>(&out, m * wide), want, "{m} {n}");
        }
    }
}

/// An output in the buffer of an input that is read before and after, and a second output of the same register.
#[test]
fn outputs_may_replace_inputs() {
    let n = 40_000;
    let p = plan(
        vec![
            desc(Place::Slot(0), n, DType::F32),
            desc(Place::Slot(0), n, DType::F32),
            desc(Place::Output(0), n, DType::F16),
            desc(Place::Leaf(0), 1, DType::F32),
        ],
        vec![map(
            &[n],
            vec![
                Load { input: 0 },
                Load { input: 1 },
                ADD(0, 1),
                Instr::Binary {
                    op: Binary::Mul,
                    a: 2,
                    b: 0,
                    ty: DType::F32,
                },
                Instr::Round {
                    a: 3,
                    from: DType::F32,
                    to: DType::F16,
                    overflow: CastMode::Saturating,
                },
            ],
            &[2, 4],
            vec![dense(0, &[n], DType::F32), access(3, 0, &[0], DType::F32)],
            vec![dense(1, &[n], DType::F32), dense(2, &[n], DType::F16)],
        )],
    );
    let v = ramp(n);
    let r = rig(2);
    let (slot, out) = (r.buffer(&v), r.buffer(&vec![half::f16::ZERO; n]));
    let one = r.buffer(&[1.5f32]);
    r.run(
        &Arc::new(p),
        &[one],
        std::slice::from_ref(&slot),
        std::slice::from_ref(&out),
    )
    .unwrap();
    assert_eq!(
        r.read::<f32>(&slot, n),
        v.iter().map(|x| x + 1.5).collect::<Vec<_>>()
    );
    for (x, y) in v.iter().zip(r.read::<half::f16>(&out, n)) {
        let want = half::f16::from_f32(((x + 1.5) * x).clamp(-65504.0, 65504.0));
        assert_eq!(y, want, "{x}");
    }
}

/// Counters, random numbers and scalars do not notice the blocks.
#[test]
fn generated_values_depend_on_the_index_alone() {
    let (m, n) = (37, 411);
    let instrs = vec![
        Instr::Iota { axis: 0 },
        Instr::Iota { axis: 1 },
        Instr::Number {
            value: Number::Table(0),
            ty: DType::F32,
        },
        Instr::Convert {
            a: 1,
            from: DType::I32,
            to: DType::F32,
        },
        Instr::Binary {
            op: Binary::Mul,
            a: 3,
            b: 2,
            ty: DType::F32,
        },
        Instr::Random {
            distribution: Distribution::Bits,
            key: 0,
            step: None,
        },
        Instr::Unary {
            op: Unary::Sqrt,
            a: 2,
            ty: DType::F32,
        },
    ];
    let d = [m, n];
    let p = plan(
        vec![
            desc(Place::Output(0), m * n, DType::I32),
            desc(Place::Output(1), m * n, DType::F32),
            desc(Place::Output(2), m * n, DType::U32),
            desc(Place::Output(3), m * n, DType::F32),
        ],
        vec![map(
            &d,
            instrs,
            &[0, 4, 5, 6],
            vec![],
            vec![
                dense(0, &d, DType::I32),
                dense(1, &d, DType::F32),
                // Every second row of the bits is written elsewhere by strides: transposed.
                access(2, 0, &[1, m as isize], DType::U32),
                dense(3, &d, DType::F32),
            ],
        )],
    );
    let r = rig(2);
    let out: Vec<Buffer> = (0..4).map(|_| r.buffer(&vec![0u32; m * n])).collect();
    r.run(&Arc::new(p), &[], &[], &out).unwrap();
    let (rows, scaled) = (r.read::<i32>(&out[0], m * n), r.read::<f32>(&out[1], m * n));
    let (bits, root) = (r.read::<u32>(&out[2], m * n), r.read::<f32>(&out[3], m * n));
    let mut want = vec![0u32; m * n];
    bimetal_kernels::simd::philox_fill_u32([0, 2], [0, 0], 0, &mut want);
    for i in 0..m {
        for j in 0..n {
            assert_eq!(rows[i * n + j], i as i32);
            assert_eq!(scaled[i * n + j], j as f32 * 0.25);
            assert_eq!(bits[j * m + i], want[i * n + j]);
            assert_eq!(root[i * n + j], 0.5);
        }
    }
}

/// A dropout drops where the uniform value is below the rate, whether its operand lies in rows, is one number a row, or lies transposed.
#[test]
fn a_dropout_is_a_selection_by_uniform_values() {
    let (m, n) = (61, 415);
    let d = [m, n];
    let number = |value| Instr::Number {
        value: Number::Const(value),
        ty: DType::F32,
    };
    let ge = |a, b| Instr::Binary {
        op: Binary::Ge,
        a,
        b,
        ty: DType::F32,
    };
    let mut uniform = vec![0f32; m * n];
    bimetal_kernels::simd::fill_uniform([0, 2], [0, 0], 0, &mut uniform);
    let x = ramp(m * n);
    let r = rig(2);
    for (rate, strides) in [
        (0.4, [n as isize, 1]),
        (0.1, [1, 0]),
        (0.7, [1, m as isize]),
        (1.5, [n as isize, 1]),
    ] {
        let instrs = vec![
            Load { input: 0 },
            Instr::Random {
                distribution: Distribution::Uniform,
                key: 0,
                step: None,
            },
            number(rate),
            ge(1, 2),
            number(-7.0),
            Instr::Select {
                c: 3,
                a: 0,
                b: 4,
                ty: DType::F32,
            },
        ];
        let p = plan(
            vec![
                desc(Place::Leaf(0), m * n, DType::F32),
                desc(Place::Output(0), m * n, DType::F32),
            ],
            vec![map(
                &d,
                instrs,
                &[5],
                vec![access(0, 0, &strides, DType::F32)],
                vec![dense(1, &d, DType::F32)],
            )],
        );
        let out = [r.buffer(&vec![0f32; m * n])];
        r.run(&Arc::new(p), &[r.buffer(&x)], &[], &out).unwrap();
        let got = r.read::<f32>(&out[0], m * n);
        for i in 0..m * n {
            let at = (i / n) as isize * strides[0] + (i % n) as isize * strides[1];
            let want = if uniform[i] >= rate as f32 {
                x[at as usize]
            } else {
                -7.0
            };
            assert_eq!(got[i], want, "rate {rate}, element {i}");
        }
    }
}

/// Reductions of every strategy with a prologue and an epilogue, against f64.
#[test]
fn reductions_agree_with_f64() {
    // Domain and strides of the input `[kept.., reduced..]`.
    let cases: [(&[usize], usize, &[isize]); 8] = [
        (&[50, 30], 1, &[30, 1]),
        (&[3, 5000], 1, &[5000, 1]),
        (&[2, 70_000], 1, &[70_000, 1]),
        (&[300, 2000], 1, &[1, 300]),
        (&[5, 40, 33], 2, &[40 * 33, 1, 40]),
        (&[4, 6, 5, 7], 2, &[210, 7, 42, 1]),
        (&[1, 100_000], 1, &[0, 1]),
        (&[600, 3], 1, &[1, 600]),
    ];
    for (domain, kept, strides) in cases {
        let n: usize = domain.iter().product();
        let k: usize = domain[..kept].iter().product();
        let len = n / k;
        let v: Vec<f32> = (0..n)
            .map(|i| ((i * 73) % 211) as f32 / 100.0 - 0.7)
            .collect();
        let square = Instr::Unary {
            op: Unary::Square,
            a: 0,
            ty: DType::F32,
        };
        for (op, f) in [
            (ReduceOp::Sum, (|a, b| a + b) as fn(f64, f64) -> f64),
            (ReduceOp::Mean, |a, b| a + b),
            (ReduceOp::Max, f64::max),
            (ReduceOp::Min, f64::min),
        ] {
            let p = plan(
                vec![
                    desc(Place::Leaf(0), n, DType::F32),
                    desc(Place::Output(0), k, DType::F32),
                ],
                vec![Kernel::Reduce {
                    domain: shape(domain),
                    kept,
                    prologue: fused(
                        vec![Load { input: 0 }, square],
                        &[1],
                        vec![access(0, 0, strides, DType::F32)],
                        vec![],
                    ),
                    op,
                    acc: DType::F32,
                    epilogue: fused(
                        vec![
                            Instr::Acc { ty: DType::F32 },
                            Instr::Unary {
                                op: Unary::Neg,
                                a: 0,
                                ty: DType::F32,
                            },
                        ],
                        &[1],
                        vec![],
                        vec![dense(1, &domain[..kept], DType::F32)],
                    ),
                }],
            );
            let r = rig(2);
            let (x, out) = (r.buffer(&v), r.buffer(&vec![0.0f32; k]));
            r.run(&Arc::new(p), &[x], &[], std::slice::from_ref(&out))
                .unwrap();
            for (i, got) in r.read::<f32>(&out, k).into_iter().enumerate() {
                let mut acc: Option<f64> = None;
                for j in 0..len {
                    let (mut rest, mut at) = (i * len + j, 0);
                    for a in (0..domain.len()).rev() {
                        at += (rest % domain[a]) as isize * strides[a];
                        rest /= domain[a];
                    }
                    let x = (v[at as usize] as f64).powi(2);
                    acc = Some(acc.map_or(x, |a| f(a, x)));
                }
                let mut want = -acc.unwrap();
                if op == ReduceOp::Mean {
                    want /= len as f64;
                }
                assert!(
                    (got as f64 - want).abs() <= 2e-6 * want.abs(),
                    "{domain:?} {op:?} {i}: {got} {want}"
                );
            }
        }
    }
}

#[test]
fn plans_that_leave_their_buffers_are_refused() {
    let r = rig(1);
    let refuse = |access: Access, word: &str| {
        let buffers = vec![
            desc(Place::Leaf(0), 10, DType::F32),
            desc(Place::Output(0), 10, DType::F32),
        ];
        let out = dense(1, &[10], DType::F32);
        let p = plan(
            buffers,
            vec![map(
                &[10],
                vec![Load { input: 0 }],
                &[0],
                vec![access],
                vec![out],
            )],
        );
        let e = r.0.compile(&Arc::new(p)).err().unwrap().to_string();
        assert!(e.contains(word) && e.contains("step 0"), "{e}");
    };
    refuse(access(0, 1, &[1], DType::F32), "leaves its buffer");
    refuse(access(0, 0, &[-1], DType::F32), "leaves its buffer");
    refuse(access(0, 0, &[1, 1], DType::F32), "rank");
    refuse(access(0, 0, &[1], DType::I32), "dtype");
    refuse(access(7, 0, &[1], DType::F32), "missing");
}

#[test]
fn runs_check_their_bindings_and_say_whether_state_was_written() {
    let r = rig(1);
    let copy = |from, to| {
        map(
            &[4],
            vec![Load { input: 0 }],
            &[0],
            vec![dense(from, &[4], DType::F32)],
            vec![dense(to, &[4], DType::F32)],
        )
    };
    let operand = |buf, n, dtype| Dense {
        buf,
        shape: shape(&[n]),
        dtype,
    };
    let mut p = plan(
        vec![
            desc(Place::Leaf(0), 4, DType::F32),
            desc(Place::Slot(0), 4, DType::F32),
            desc(Place::Leaf(1), 4, DType::I32),
            desc(Place::Slot(1), 4, DType::F32),
        ],
        vec![
            copy(0, 1),
            Kernel::Take {
                outer: 1,
                inner: 1,
                size: 4,
                input: operand(0, 4, DType::F32),
                index: operand(2, 4, DType::I32),
                output: operand(3, 4, DType::F32),
            },
        ],
    );
    let x = r.buffer(&[1.0f32, 2.0, 3.0, 4.0]);
    let index = r.buffer(&[0i32, 1, 2, 4]);
    let state = [r.buffer(&[0.0f32; 4]), r.buffer(&[0.0f32; 4])];
    for (first_write, written) in [(2, false), (1, false), (0, true)] {
        p.first_write = first_write;
        let e = r
            .run(
                &Arc::new(p.clone()),
                &[x.clone(), index.clone()],
                &state,
                &[],
            )
            .unwrap_err();
        assert_eq!(e.kind, ErrorKind::IndexOutOfRange { index: 4, size: 4 });
        assert_eq!((e.step, e.state_written), (1, written));
        assert_eq!(r.read::<f32>(&state[1], 4), [0.0; 4]);
    }
    let p = Arc::new(p);
    let missing = r
        .run(&p, std::slice::from_ref(&x), &state, &[])
        .unwrap_err();
    assert!(
        format!("{:?}", missing.kind).contains("leaf 1"),
        "{:?}",
        missing.kind
    );
    let small = r.buffer(&[0i32]);
    let e = r.run(&p, &[x, small], &state, &[]).unwrap_err();
    assert!(
        format!("{:?}", e.kind).contains("has 4 bytes"),
        "{:?}",
        e.kind
    );
}
