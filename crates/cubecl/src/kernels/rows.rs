//! Softmax, layer normalisation, cross-entropy and their gradients: a cube for each row, statistics in f32.
use super::Launch;
use super::common::{Build, GROUP, Slab, get, put};
use super::index::report;
use crate::math::{self, bits, float};
use crate::plan::{Bound, Cx};
use crate::words::{self, Atomics, Buffers};
use bimetal_tensor::graph::Composite;
use bimetal_tensor::plan::{Dense, Meta, Strided};
use bimetal_tensor::{DType, ErrorKind};
use cubecl::prelude::*;

/// The most units of a cube.
const UNITS: u32 = 128;

/// What a row kernel computes. The operands are named by their numbers among `Row::x` and `Row::y`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    Softmax {
        log: bool,
    },
    SoftmaxGrad {
        log: bool,
    },
    /// The bits of eps.
    LayerNorm(u32),
    LayerNormGrad,
    CrossEntropy {
        ignore: i32,
        smoothing: u32,
    },
    CrossEntropyGrad {
        ignore: i32,
        smoothing: u32,
    },
}

/// A result: where it goes, and whether rows share words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Out {
    binding: usize,
    dtype: DType,
    shared: bool,
}

/// Rows and operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Row {
    work: Work,
    d: u32,
    units: u32,
    x: Vec<Slab>,
    y: Vec<Option<Out>>,
}

/// The sum over the units of a cube, for all of them.
#[cube]
fn sum_units(shared: &mut Shared<[f32]>, v: f32, #[comptime] units: u32) -> f32 {
    sync_cube();
    shared[UNIT_POS as usize] = v;
    let mut half = comptime!(units / 2).runtime();
    while half > 0u32 {
        sync_cube();
        if UNIT_POS < half {
            let other = shared[(UNIT_POS + half) as usize];
            shared[UNIT_POS as usize] = shared[UNIT_POS as usize] + other;
        }
        half /= 2u32;
    }
    sync_cube();
    shared[0]
}

/// The largest over the units of a cube; NaN if any is NaN.
#[cube]
fn max_units(shared: &mut Shared<[f32]>, v: f32, #[comptime] units: u32) -> f32 {
    sync_cube();
    shared[UNIT_POS as usize] = v;
    let mut half = comptime!(units / 2).runtime();
    while half > 0u32 {
        sync_cube();
        if UNIT_POS < half {
            let other = shared[(UNIT_POS + half) as usize];
            shared[UNIT_POS as usize] = larger(shared[UNIT_POS as usize], other);
        }
        half /= 2u32;
    }
    sync_cube();
    shared[0]
}

#[cube]
fn larger(a: f32, b: f32) -> f32 {
    let m = select(a > b, a, b);
    select(math::is_nan(a), a, m)
}

/// Element `at` of operand `k`.
#[cube]
fn x(buffers: &Buffers, at: u32, #[comptime] k: usize, #[comptime] r: Row) -> f32 {
    float(get(buffers, at, comptime!(r.x[k].clone())))
}

/// Stores one number of a row.
#[cube]
fn put_one(
    buffers: &mut Buffers,
    atomics: &Atomics,
    at: u32,
    v: f32,
    #[comptime] k: usize,
    #[comptime] r: Row,
) {
    if comptime!(r.y[k].is_some()) {
        let out = comptime!(r.y[k].clone().unwrap());
        if comptime!(out.shared) {
            words::store_part(
                atomics,
                comptime!(out.binding),
                at,
                bits(v),
                comptime!(out.dtype),
            );
        } else {
            let words = buffers.index_mut(comptime!(out.binding));
            words[at as usize] = bits(v);
        }
    }
}

/// Stores [`GROUP`] numbers of a row from column `c`.
#[cube]
fn put_group(
    buffers: &mut Buffers,
    atomics: &Atomics,
    values: &Sequence<u32>,
    base: u32,
    c: u32,
    #[comptime] k: usize,
    #[comptime] r: Row,
) {
    if comptime!(r.y[k].is_some()) {
        let out = comptime!(r.y[k].clone().unwrap());
        if comptime!(out.shared) {
            #[unroll]
            for j in 0..GROUP {
                let column = c + comptime!(j as u32);
                if column < comptime!(r.d) {
                    let value = *values.index(j);
                    words::store_part(
                        atomics,
                        comptime!(out.binding),
                        base + column,
                        value,
                        comptime!(out.dtype),
                    );
                }
            }
        } else {
            let end = base + comptime!(r.d);
            put(
                buffers,
                values,
                base + c,
                end,
                comptime!(out.binding),
                comptime!(out.dtype),
            );
        }
    }
}

/// What a unit needs to know of its row to compute an element of the result.
#[derive(CubeType, Clone, Copy)]
struct Facts {
    a: f32,
    b: f32,
    /// The class of the row's target, and whether the row counts.
    class: u32,
    counts: bool,
}

#[cube(launch_unchecked)]
fn row_kernel(
    mut buffers: Buffers,
    atomics: Atomics,
    fault: &mut [u32],
    rows: u32,
    plan: u32,
    step: u32,
    #[comptime] r: Row,
) {
    let row = CUBE_POS as u32;
    if row >= rows {
        terminate!();
    }
    let d = comptime!(r.d);
    let units = comptime!(r.units);
    let base = row * d;
    let mut shared = Shared::<[f32]>::new_slice(comptime!(units as usize));
    let facts = facts(
        &buffers,
        fault,
        &mut shared,
        row,
        plan,
        step,
        comptime!(r.clone()),
    );
    if UNIT_POS == 0u32 {
        if comptime!(matches!(r.work, Work::LayerNorm(_))) {
            put_one(
                &mut buffers,
                &atomics,
                row,
                facts.a,
                1usize,
                comptime!(r.clone()),
            );
            put_one(
                &mut buffers,
                &atomics,
                row,
                facts.b,
                2usize,
                comptime!(r.clone()),
            );
        }
        if comptime!(matches!(r.work, Work::CrossEntropy { .. })) {
            put_one(
                &mut buffers,
                &atomics,
                row,
                facts.b,
                0usize,
                comptime!(r.clone()),
            );
            put_one(
                &mut buffers,
                &atomics,
                row,
                facts.a,
                1usize,
                comptime!(r.clone()),
            );
        }
    }
    if comptime!(!matches!(r.work, Work::CrossEntropy { .. })) {
        let mut c = UNIT_POS * comptime!(GROUP as u32);
        while c < d {
            let mut values = Sequence::<u32>::new();
            #[unroll]
            for j in 0..GROUP {
                let column = min(c + comptime!(j as u32), comptime!(d - 1).runtime());
                let value = bits(result(&buffers, row, column, &facts, comptime!(r.clone())));
                values.push(value);
            }
            put_group(
                &mut buffers,
                &atomics,
                &values,
                base,
                c,
                0usize,
                comptime!(r.clone()),
            );
            c += comptime!(units * GROUP as u32);
        }
    }
}

/// The statistics of a row.
#[cube]
fn facts(
    buffers: &Buffers,
    fault: &mut [u32],
    shared: &mut Shared<[f32]>,
    row: u32,
    plan: u32,
    step: u32,
    #[comptime] r: Row,
) -> Facts {
    let d = comptime!(r.d);
    let units = comptime!(r.units);
    let base = row * d;
    match comptime!(r.work.clone()) {
        Work::Softmax { .. } => {
            let (top, sum) = exponentials(buffers, shared, base, comptime!(r.clone()));
            Facts {
                a: top,
                b: sum,
                class: 0u32,
                counts: true,
            }
        }
        Work::SoftmaxGrad { log } => {
            let mut part = 0.0f32;
            let mut c = UNIT_POS;
            while c < d {
                let dy = x(buffers, base + c, 1usize, comptime!(r.clone()));
                if comptime!(log) {
                    part += dy;
                } else {
                    part += dy * x(buffers, base + c, 0usize, comptime!(r.clone()));
                }
                c += units;
            }
            let sum = sum_units(shared, part, units);
            Facts {
                a: sum,
                b: 0.0f32,
                class: 0u32,
                counts: true,
            }
        }
        Work::LayerNorm(eps) => {
            let mut part = 0.0f32;
            let mut c = UNIT_POS;
            while c < d {
                part += x(buffers, base + c, 0usize, comptime!(r.clone()));
                c += units;
            }
            let mean = sum_units(shared, part, units) / comptime!(d as f32);
            let mut square = 0.0f32;
            let mut c = UNIT_POS;
            while c < d {
                let v = x(buffers, base + c, 0usize, comptime!(r.clone())) - mean;
                square += v * v;
                c += units;
            }
            let var = sum_units(shared, square, units) / comptime!(d as f32);
            let rstd = 1.0f32 / math::sqrt(var + comptime!(f32::from_bits(eps)));
            Facts {
                a: mean,
                b: rstd,
                class: 0u32,
                counts: true,
            }
        }
        Work::LayerNormGrad => {
            let mean = x(buffers, row, 2usize, comptime!(r.clone()));
            let rstd = x(buffers, row, 3usize, comptime!(r.clone()));
            let mut first = 0.0f32;
            let mut second = 0.0f32;
            let mut c = UNIT_POS;
            while c < d {
                let n = (x(buffers, base + c, 0usize, comptime!(r.clone())) - mean) * rstd;
                let g = x(buffers, base + c, 4usize, comptime!(r.clone()))
                    * x(buffers, c, 1usize, comptime!(r.clone()));
                first += g;
                second += g * n;
                c += units;
            }
            let a = sum_units(shared, first, units) / comptime!(d as f32);
            let b = sum_units(shared, second, units) / comptime!(d as f32);
            Facts {
                a,
                b,
                class: 0u32,
                counts: true,
            }
        }
        Work::CrossEntropy { ignore, smoothing } => {
            let (top, sum) = exponentials(buffers, shared, base, comptime!(r.clone()));
            let lse = math::log(sum) + top;
            let target = get(buffers, row, comptime!(r.x[1].clone()));
            let counts = target != comptime!(ignore as u32);
            let mut mean = 0.0f32;
            if comptime!(smoothing != 0) {
                let mut part = 0.0f32;
                let mut c = UNIT_POS;
                while c < d {
                    part += x(buffers, base + c, 0usize, comptime!(r.clone()));
                    c += units;
                }
                mean = sum_units(shared, part, units) / comptime!(d as f32);
            }
            let safe = select(counts, target, 0u32);
            let class = report(fault, safe, d, plan, step);
            let mut loss = lse - x(buffers, base + class, 0usize, comptime!(r.clone()));
            if comptime!(smoothing != 0) {
                let s = comptime!(f32::from_bits(smoothing));
                loss = loss * (1.0f32 - s) + (lse - mean) * s;
            }
            Facts {
                a: lse,
                b: select(counts, loss, 0.0f32),
                class,
                counts,
            }
        }
        Work::CrossEntropyGrad { ignore, .. } => {
            let target = get(buffers, row, comptime!(r.x[1].clone()));
            let lse = x(buffers, row, 2usize, comptime!(r.clone()));
            let dloss = x(buffers, row, 3usize, comptime!(r.clone()));
            let counts = target != comptime!(ignore as u32);
            let safe = select(counts, target, 0u32);
            let class = report(fault, safe, d, plan, step);
            Facts {
                a: lse,
                b: dloss,
                class,
                counts,
            }
        }
    }
}

/// The largest element of a row and the sum of the exponentials of what the others are below it.
#[cube]
fn exponentials(
    buffers: &Buffers,
    shared: &mut Shared<[f32]>,
    base: u32,
    #[comptime] r: Row,
) -> (f32, f32) {
    let d = comptime!(r.d);
    let units = comptime!(r.units);
    let mut top = float(0xff80_0000u32.runtime());
    let mut c = UNIT_POS;
    while c < d {
        top = larger(top, x(buffers, base + c, 0usize, comptime!(r.clone())));
        c += units;
    }
    let top = max_units(shared, top, units);
    let mut part = 0.0f32;
    let mut c = UNIT_POS;
    while c < d {
        part += math::exp(x(buffers, base + c, 0usize, comptime!(r.clone())) - top);
        c += units;
    }
    let sum = sum_units(shared, part, units);
    (top, sum)
}

/// Element `c` of the result's row.
#[cube]
fn result(buffers: &Buffers, row: u32, c: u32, f: &Facts, #[comptime] r: Row) -> f32 {
    let at = row * comptime!(r.d) + c;
    match comptime!(r.work.clone()) {
        Work::Softmax { log } => {
            let v = x(buffers, at, 0usize, comptime!(r.clone())) - f.a;
            if comptime!(log) {
                v - math::log(f.b)
            } else {
                math::exp(v) / f.b
            }
        }
        Work::SoftmaxGrad { log } => {
            let y = x(buffers, at, 0usize, comptime!(r.clone()));
            let dy = x(buffers, at, 1usize, comptime!(r.clone()));
            if comptime!(log) {
                dy - math::exp(y) * f.a
            } else {
                y * (dy - f.a)
            }
        }
        Work::LayerNorm(_) => {
            let n = (x(buffers, at, 0usize, comptime!(r.clone())) - f.a) * f.b;
            n * x(buffers, c, 1usize, comptime!(r.clone()))
                + x(buffers, c, 2usize, comptime!(r.clone()))
        }
        Work::LayerNormGrad => {
            let mean = x(buffers, row, 2usize, comptime!(r.clone()));
            let rstd = x(buffers, row, 3usize, comptime!(r.clone()));
            let n = (x(buffers, at, 0usize, comptime!(r.clone())) - mean) * rstd;
            let g = x(buffers, at, 4usize, comptime!(r.clone()))
                * x(buffers, c, 1usize, comptime!(r.clone()));
            (g - f.a - n * f.b) * rstd
        }
        Work::CrossEntropy { .. } => 0.0f32,
        Work::CrossEntropyGrad { smoothing, .. } => {
            let p = math::exp(x(buffers, at, 0usize, comptime!(r.clone())) - f.a);
            let s = comptime!(f32::from_bits(smoothing));
            let each = comptime!(s / r.d as f32);
            let q = select(c == f.class, 1.0f32 - s, 0.0f32) + each;
            select(f.counts, (p - q) * f.b, 0.0f32)
        }
    }
}

/// Units of a cube of columns, and how many of them share a column.
const COLUMNS: u32 = 32;
const SHARE: u32 = 8;

/// The gradients of gamma and beta: sums over the rows.
#[cube(launch_unchecked)]
fn column_kernel(mut buffers: Buffers, atomics: Atomics, rows: u32, #[comptime] r: Row) {
    let c = CUBE_POS as u32 * COLUMNS + UNIT_POS_X;
    let inside = c < comptime!(r.d);
    let column = select(inside, c, 0u32);
    let mut dgamma = 0.0f32;
    let mut dbeta = 0.0f32;
    let mut row = UNIT_POS_Y;
    while row < rows {
        let mean = x(&buffers, row, 2usize, comptime!(r.clone()));
        let rstd = x(&buffers, row, 3usize, comptime!(r.clone()));
        let at = row * comptime!(r.d) + column;
        let dy = x(&buffers, at, 4usize, comptime!(r.clone()));
        let n = (x(&buffers, at, 0usize, comptime!(r.clone())) - mean) * rstd;
        dgamma += dy * n;
        dbeta += dy;
        row += SHARE;
    }
    let size = comptime!((COLUMNS * SHARE) as usize);
    let mut first = Shared::<[f32]>::new_slice(size);
    let mut second = Shared::<[f32]>::new_slice(size);
    let mine = (UNIT_POS_Y * COLUMNS + UNIT_POS_X) as usize;
    first[mine] = dgamma;
    second[mine] = dbeta;
    sync_cube();
    if UNIT_POS_Y == 0u32 && inside {
        let mut a = 0.0f32;
        let mut b = 0.0f32;
        for k in 0..SHARE {
            a += first[(k * COLUMNS + UNIT_POS_X) as usize];
            b += second[(k * COLUMNS + UNIT_POS_X) as usize];
        }
        put_one(&mut buffers, &atomics, c, a, 1usize, comptime!(r.clone()));
        put_one(&mut buffers, &atomics, c, b, 2usize, comptime!(r.clone()));
    }
}

/// A composite that works row by row.
pub(super) struct Rows {
    row: Row,
    bound: Bound,
    rows: usize,
    step: usize,
}

/// Whether a composite is one of these, for operands like these.
pub(super) fn native(composite: &Composite, inputs: &[Meta]) -> bool {
    let float = |m: &Meta| m.dtype.is_float() && m.dtype != DType::F64;
    let row = inputs
        .first()
        .is_some_and(|m| m.shape.last().is_some_and(|n| *n > 0));
    let fits = |v: i64| i32::try_from(v).is_ok();
    row && match composite {
        Composite::Softmax
        | Composite::SoftmaxGrad
        | Composite::LogSoftmax
        | Composite::LogSoftmaxGrad
        | Composite::LayerNorm { .. }
        | Composite::LayerNormGrad => inputs.iter().all(float),
        Composite::CrossEntropy { ignore_index, .. }
        | Composite::CrossEntropyGrad { ignore_index, .. } => {
            float(&inputs[0]) && inputs[1].dtype == DType::I32 && fits(*ignore_index)
        }
        _ => false,
    }
}

impl Rows {
    pub(super) fn new(
        b: &Build<'_>,
        composite: &Composite,
        inputs: &[Strided],
        outputs: &[Option<Strided>],
    ) -> Result<Rows, String> {
        let work = match *composite {
            Composite::Softmax => Work::Softmax { log: false },
            Composite::LogSoftmax => Work::Softmax { log: true },
            Composite::SoftmaxGrad => Work::SoftmaxGrad { log: false },
            Composite::LogSoftmaxGrad => Work::SoftmaxGrad { log: true },
            Composite::LayerNorm { eps } => Work::LayerNorm((eps.0 as f32).to_bits()),
            Composite::LayerNormGrad => Work::LayerNormGrad,
            Composite::CrossEntropy {
                ignore_index,
                label_smoothing,
            } => Work::CrossEntropy {
                ignore: ignore_index as i32,
                smoothing: (label_smoothing.0 as f32).to_bits(),
            },
            Composite::CrossEntropyGrad {
                ignore_index,
                label_smoothing,
            } => Work::CrossEntropyGrad {
                ignore: ignore_index as i32,
                smoothing: (label_smoothing.0 as f32).to_bits(),
            },
            ref other => return Err(format!("`{}` has no kernel on this device", other.name())),
        };
        let mut bound = Bound::default();
        let x = inputs
            .iter()
            .map(|s| b.slab(&dense(s), &mut bound))
            .collect::<Result<Vec<Slab>, String>>()?;
        let shape = inputs[0].shape;
        let d = shape.last().copied().unwrap_or(1);
        let mut out = |(k, s): (usize, &Option<Strided>)| {
            s.as_ref().map(|s| {
                let dtype = s.access.dtype;
                let per = 4 / dtype.size();
                let row = k == 0 && !matches!(work, Work::CrossEntropy { .. });
                let shared = per > 1 && !(row && d.is_multiple_of(per));
                let buf = s.access.buf as usize;
                let binding = match shared {
                    true => bound.atomic(buf),
                    false => bound.buffer(buf),
                };
                Out {
                    binding,
                    dtype,
                    shared,
                }
            })
        };
        let mut y: Vec<Option<Out>> = outputs.iter().enumerate().map(&mut out).collect();
        y.resize(3, None);
        let units = (d.div_ceil(GROUP) as u32)
            .next_power_of_two()
            .clamp(8, UNITS);
        Ok(Rows {
            row: Row {
                work,
                d: d as u32,
                units: units.min(b.limits.max_units),
                x,
                y,
            },
            rows: shape.numel() / d.max(1),
            bound,
            step: b.step,
        })
    }
}

fn dense(s: &Strided) -> Dense {
    Dense {
        buf: s.access.buf,
        shape: s.shape,
        dtype: s.access.dtype,
    }
}

impl Launch for Rows {
    fn launch(&self, cx: &Cx<'_>) -> Result<(), ErrorKind> {
        let row = &self.row;
        let columns =
            matches!(row.work, Work::LayerNormGrad) && row.y[1..].iter().any(Option::is_some);
        let client = &cx.device.client;
        // SAFETY: rows lie in the operands, whose sizes the scheduler has checked; classes outside of the row are taken for 0.
        unsafe {
            if self.rows > 0 {
                let (buffers, atomics) = cx.bind(&self.bound);
                row_kernel::launch_unchecked(
                    client,
                    cx.grid(self.rows),
                    CubeDim::new_1d(row.units),
                    buffers,
                    atomics,
                    cx.fault(),
                    self.rows as u32,
                    cx.plan,
                    self.step as u32,
                    row.clone(),
                );
            }
            if columns {
                let (buffers, atomics) = cx.bind(&self.bound);
                column_kernel::launch_unchecked(
                    client,
                    cx.grid(row.d.div_ceil(COLUMNS) as usize),
                    CubeDim::new_2d(COLUMNS, SHARE),
                    buffers,
                    atomics,
                    self.rows as u32,
                    row.clone(),
                );
            }
        }
        Ok(())
    }

    fn buffers(&self) -> Vec<usize> {
        self.bound.all()
    }

    fn checks_indices(&self) -> bool {
        matches!(
            self.row.work,
            Work::CrossEntropy { .. } | Work::CrossEntropyGrad { .. }
        )
    }
}
