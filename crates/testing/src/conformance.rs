//! The suite that every backend is put through: each operation on random shapes, layouts and dtypes against the f64 reference, fused
//! against unfused, and gradients against differences.
use crate::cases::{Case, Input, all};
use crate::random::Gen;
use crate::reference;
use bimetal_tensor::{DType, Device, Error, ErrorKind, Result, Support, Tensor};
use std::collections::BTreeMap;

/// Why cases were skipped that a suite was not to begin any more.
pub(crate) const OUT_OF_TIME: &str = "the time was up";

/// What the suite found.
#[derive(Debug, Default)]
pub struct Report {
    pub checked: usize,
    /// What the device cannot do, and how many cases that leaves out.
    pub skipped: BTreeMap<String, usize>,
    pub failures: Vec<String>,
}

impl Report {
    /// The first failures, if there are any; otherwise how much was checked.
    pub fn verdict(&self) -> std::result::Result<String, String> {
        let n = self.failures.len();
        if n == 0 {
            return match self.checked {
                0 => Err("nothing was checked".into()),
                n => Ok(format!("{n} checks passed")),
            };
        }
        // The first of each operation and dtype, so that one fault does not hide the others.
        let mut seen = std::collections::HashSet::new();
        let key = |f: &String| f.split(" seed ").next().unwrap_or_default().to_string();
        let first: Vec<_> = self
            .failures
            .iter()
            .filter(|f| seen.insert(key(f)))
            .take(40)
            .cloned()
            .collect();
        let first = first.join("\n");
        Err(format!("{n} of {} checks failed:\n{first}", self.checked))
    }

    /// What was skipped, a line each.
    pub fn skips(&self) -> Vec<String> {
        let skips = self.skipped.iter();
        skips
            .map(|(why, n)| format!("skipped: {n} cases: {why}"))
            .collect()
    }

    /// Panics with the first failures, if there are any.
    pub fn assert_clean(&self) {
        for line in self.skips() {
            println!("{line}");
        }
        let failures = self.verdict().err();
        assert!(failures.is_none(), "{}", failures.unwrap_or_default());
    }
}

/// The values in a dtype: rounded by the device, or on the host where the device has no f64.
pub(crate) fn leaf(data: &[f64], shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    if device.info().support(DType::F64) != Support::No {
        return Tensor::from_slice(data, shape, device).cast(dtype);
    }
    let mut bytes = vec![0; data.len() * dtype.size()];
    let host: Vec<u8> = data.iter().flat_map(|v| v.to_ne_bytes()).collect();
    let cast = bimetal_tensor::cast_slice(&host, DType::F64, &mut bytes, dtype, Default::default());
    cast.expect("f64 casts to every dtype");
    Tensor::from_bytes(&bytes, shape, dtype, device)
}

/// An input in some memory layout: the same elements reached through views of other buffers.
fn layout(g: &mut Gen, data: &[f64], shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    let leaf = |data: &[f64], shape: &[usize]| leaf(data, shape, dtype, device);
    let rank = shape.len();
    let arr = |i: &[usize]| i.iter().zip(shape).fold(0, |l, (i, n)| l * n + i);
    let axis = g.below(rank.max(1));
    match g.below(6) {
        // Stored transposed.
        1 if rank >= 2 => {
            let other = (axis + 1) % rank;
            let mut s = shape.to_vec();
            s.swap(axis, other);
            let mut v = Vec::new();
            reference::for_each(&s, |i| {
                let mut j = i.to_vec();
                j.swap(axis, other);
                v.push(data[arr(&j)]);
            });
            leaf(&v, &s).transpose(axis as isize, other as isize)
        }
        // Every second element of a longer axis.
        2 if rank >= 1 => {
            let mut s = shape.to_vec();
            s[axis] *= 2;
            let mut v = Vec::new();
            reference::for_each(&s, |i| {
                let mut j = i.to_vec();
                j[axis] /= 2;
                v.push(if i[axis] % 2 == 0 {
                    data[arr(&j)]
                } else {
                    -0.75
                });
            });
            leaf(&v, &s).slice_step(axis as isize, 0, 2, shape[axis])
        }
        // Stored backwards.
        3 if rank >= 1 => {
            let mut v = Vec::new();
            reference::for_each(shape, |i| {
                let mut j = i.to_vec();
                j[axis] = shape[axis] - 1 - i[axis];
                v.push(data[arr(&j)]);
            });
            leaf(&v, shape).flip(axis as isize)
        }
        // Inside a bigger buffer.
        4 if rank >= 1 => {
            let mut s = shape.to_vec();
            s[axis] += 3;
            let mut v = Vec::new();
            reference::for_each(&s, |i| {
                let mut j = i.to_vec();
                v.push(match i[axis].checked_sub(1) {
                    Some(p) if p < shape[axis] => {
                        j[axis] = p;
                        data[arr(&j)]
                    }
                    _ => 0.625,
                });
            });
            leaf(&v, &s).narrow(axis as isize, 1, shape[axis])
        }
        // Under another shape.
        5 => leaf(data, &[data.len()])
            .reshape(&shape.iter().map(|&d| d as isize).collect::<Vec<_>>()),
        _ => leaf(data, shape),
    }
}

/// Makes the inputs of a case in a dtype.
pub(crate) fn inputs(
    g: &mut Gen,
    case: &Case,
    dtype: DType,
    layouts: bool,
    device: &Device,
) -> Vec<Tensor> {
    case.inputs
        .iter()
        .map(|i| {
            let n = i.shape().iter().product();
            let (data, d) = match i {
                Input::Float { range, .. } => (g.values(n, range.0, range.1), dtype),
                Input::Wide { range, .. } => {
                    let d = if dtype == DType::F64 {
                        DType::F64
                    } else {
                        DType::F32
                    };
                    (g.values(n, range.0, range.1), d)
                }
                Input::Index { below, .. } => {
                    ((0..n).map(|_| g.below(*below) as f64).collect(), DType::I32)
                }
                Input::Bool { .. } => (
                    (0..n).map(|_| g.chance(0.6) as u8 as f64).collect(),
                    DType::Bool,
                ),
            };
            if layouts {
                layout(g, &data, i.shape(), d, device)
            } else {
                leaf(&data, i.shape(), d, device)
            }
        })
        .collect()
}

/// Values on the device as f64, without rounding on the way.
fn values(t: &Tensor) -> Result<Vec<f64>> {
    t.to_f64_vec()
}

/// Compares a result with its reference: `scale` bounds the magnitude of what is accumulated.
fn compare(got: &[f64], want: &reference::Array, scale: f64, ulps: f64) -> Option<String> {
    let d = want.dtype;
    let (eps, acc) = match d {
        d if !d.is_float() => (0.0, 0.0),
        DType::F64 => (f64::EPSILON, f64::EPSILON),
        d => (d.epsilon(), DType::F32.epsilon()),
    };
    if got.len() != want.data.len() {
        return Some(format!(
            "{} elements where {} were expected",
            got.len(),
            want.data.len()
        ));
    }
    for (i, (&a, &b)) in got.iter().zip(&want.data).enumerate() {
        let tol = ulps * (eps * b.abs() + d_small(d)) + 8.0 * acc * scale;
        let same = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tol;
        if !same {
            return Some(format!(
                "element {i}: {a:e} where {b:e} was expected (tolerance {tol:e})"
            ));
        }
    }
    None
}

fn d_small(d: DType) -> f64 {
    if d.is_float() {
        d.smallest_subnormal()
    } else {
        0.0
    }
}

/// Puts a device through every operation, `rounds` random cases each.
pub fn run(device: &Device, seed: u64, rounds: usize) -> Report {
    run_while(device, seed, rounds, &mut |_| true)
}

/// [`run`], an operation after the other for as long as `go_on` says so, which is shown what was found.
pub fn run_while(
    device: &Device,
    seed: u64,
    rounds: usize,
    go_on: &mut dyn FnMut(&Report) -> bool,
) -> Report {
    let mut r = Report::default();
    for (index, maker) in all().iter().enumerate() {
        if !go_on(&r) {
            *r.skipped.entry(OUT_OF_TIME.into()).or_default() += rounds;
            continue;
        }
        for round in 0..rounds {
            let mut g = Gen::new(seed ^ ((index as u64) << 32) ^ round as u64);
            let case = maker(&mut g);
            for &dtype in case.dtypes {
                if device.info().support(dtype) == Support::No {
                    let why = format!("the device has no {dtype}");
                    *r.skipped.entry(why).or_default() += 1;
                    continue;
                }
                let x = inputs(&mut g, &case, dtype, true, device);
                let outs = (case.build)(&x);
                for (o, out) in outs.iter().enumerate() {
                    r.checked += 1;
                    let place = format!(
                        "{}[{o}] {dtype} seed {seed} case {index}.{round}",
                        case.name
                    );
                    let want = match reference::eval(out) {
                        Ok(w) => w,
                        Err(e) => {
                            r.failures.push(format!("{place}: reference: {e}"));
                            continue;
                        }
                    };
                    match values(out) {
                        Ok(got) => {
                            if let Some(e) = compare(&got, &want, case.scale, case.ulps) {
                                r.failures.push(format!("{place}: {e}"));
                            }
                        }
                        Err(e) if let Some(d) = lacking(device, &e) => {
                            let why = format!("the device has no {d}");
                            *r.skipped.entry(why).or_default() += 1;
                        }
                        Err(e) => r.failures.push(format!("{place}: {e}")),
                    }
                }
            }
        }
    }
    r
}

/// The dtype that the device has not, if that is what an error says.
fn lacking(device: &Device, e: &Error) -> Option<DType> {
    match e.kind() {
        ErrorKind::DType { found, .. } => found
            .iter()
            .copied()
            .find(|d| device.info().support(*d) == Support::No),
        _ => None,
    }
}

/// Random element-wise graphs with reductions and products must give the same bits fused and unfused.
pub fn fusion_keeps_bits(device: &Device, seed: u64, rounds: usize) -> Report {
    let mut r = Report::default();
    for round in 0..rounds {
        let build = |fused: bool| -> Result<Vec<Vec<u8>>> {
            let mut g = Gen::new(seed ^ round as u64);
            let outs = crate::random_graph::random_graph(&mut g, device);
            device.set_fusion(fused);
            let refs: Vec<&Tensor> = outs.iter().collect();
            let e = bimetal_tensor::eval(&refs);
            device.set_fusion(true);
            e?;
            outs.iter().map(|o| o.to_bytes()).collect()
        };
        r.checked += 1;
        match (build(true), build(false)) {
            (Ok(a), Ok(b)) if a == b => {}
            (Ok(_), Ok(_)) => r.failures.push(format!(
                "seed {seed} round {round}: fused and unfused bits differ"
            )),
            (Err(e), _) | (_, Err(e)) => r.failures.push(format!("seed {seed} round {round}: {e}")),
        }
    }
    r
}
