//! Random programs over views, reductions, products, composites, checkpoints, gradients and state. However a program is scheduled
//! (fused or not, on one thread or three, at once or result by result, from the plan cache or compiled anew) its bits are the same,
//! and they agree with the f64 reference.
use bimetal_autodiff::{checkpoint, grad_optional};
use bimetal_cpu::CpuBackend;
use bimetal_tensor::graph::{Distribution, RandomKey, Unary};
use bimetal_tensor::{DType, Device, Result, Slot, Tensor, commit, eval};
use bimetal_testing::random::Gen;
use bimetal_testing::reference::{self, Array};
use std::collections::HashMap;

#[derive(Clone, Debug)]
struct Step {
    op: usize,
    a: usize,
    b: usize,
    r: u64,
}

/// A program as data, so that a failing one can be made smaller by leaving out parts.
#[derive(Clone, Debug)]
struct Recipe {
    dims: [usize; 3],
    /// Everything in one dtype, compared with the reference; otherwise a mixture.
    only: Option<DType>,
    slots: usize,
    steps: Vec<Step>,
    outs: usize,
    gradient: bool,
    seed: u64,
}

const MIX: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

fn recipe(seed: u64) -> Recipe {
    let mut g = Gen::new(seed);
    let size = |g: &mut Gen| match g.below(20) {
        0 => 37,
        1 => 64,
        2 => 1,
        3 => 150,
        _ => 1 + g.below(6),
    };
    let mut dims = [size(&mut g), size(&mut g), size(&mut g)];
    if dims.iter().product::<usize>() > 40_000 {
        dims[0] = 2;
    }
    let only = match g.below(4) {
        0 => Some(DType::F64),
        1 => Some(DType::F32),
        _ => None,
    };
    let count = 3 + g.below(22);
    Recipe {
        dims,
        only,
        slots: g.below(4),
        steps: (0..count)
            .map(|_| Step {
                op: g.below(30),
                a: g.below(1000),
                b: g.below(1000),
                r: g.bits(),
            })
            .collect(),
        outs: 1 + g.below(4),
        gradient: g.chance(0.6),
        seed,
    }
}

fn dims_of(t: &Tensor) -> Vec<usize> {
    t.shape().unwrap().to_vec()
}

fn float(r: &Recipe, g: &mut Gen) -> DType {
    r.only.unwrap_or(*g.pick(&MIX))
}

fn leaf(g: &mut Gen, shape: &[usize], dtype: DType, d: &Device) -> Tensor {
    let v = g.values(shape.iter().product(), -1.5, 1.5);
    Tensor::from_slice(&v, shape, d).cast(dtype)
}

/// What one instruction makes of two values.
fn apply(r: &Recipe, s: &Step, a: &Tensor, b: &Tensor, round: u64, d: &Device) -> Tensor {
    let mut g = Gen::new(s.r);
    let sa = dims_of(a);
    let rank = sa.len();
    let axis = g.below(rank.max(1));
    let fits = Tensor::broadcast_shape(&[a, b]).is_ok_and(|s| s.numel() <= 20_000);
    let signed: Vec<isize> = sa.iter().map(|&n| n as isize).collect();
    match s.op {
        0 if fits => a + b,
        1 if fits => (a * b).tanh(),
        2 if fits => a - b * 0.37,
        3 if fits && r.only.is_none() => a.gt(b).select(a, b),
        3 if fits => a.maximum(b),
        4 => a.unary(*g.pick(&[
            Unary::Tanh,
            Unary::Sigmoid,
            Unary::Gelu,
            Unary::Silu,
            Unary::Sin,
            Unary::Softplus,
            Unary::Neg,
        ])),
        5 => a.cast(float(r, &mut g)),
        6 | 7 if rank > 1 => {
            let mut p: Vec<isize> = (0..rank as isize).collect();
            for i in (1..rank).rev() {
                p.swap(i, g.below(i + 1));
            }
            a.permute(&p)
        }
        8 if rank > 0 => {
            let mut t = signed;
            t.reverse();
            a.reshape(&t)
        }
        9 if rank > 1 => a.flatten(axis.min(rank - 2) as isize..=(axis.min(rank - 2) + 1) as isize),
        10 | 11 if rank > 0 => {
            let n = sa[axis];
            let step = 1 + g.below(2);
            let count = 1 + g.below(n.div_ceil(step));
            if g.chance(0.5) {
                a.slice_step(axis as isize, n - 1, -(step as isize), count)
            } else {
                a.slice_step(axis as isize, 0, step as isize, count)
            }
        }
        12 if rank < 4 && a.numel().unwrap() < 4000 => {
            let t = a.unsqueeze(axis as isize);
            let mut s = dims_of(&t);
            s[axis] = 1 + g.below(3);
            t.broadcast_to(&s)
        }
        13 if rank > 0 && a.numel().unwrap() < 10_000 => {
            let other = if dims_of(b) == sa {
                b.cast(a.dtype())
            } else {
                a.flip(0)
            };
            Tensor::concat(&[a, &other, a], axis as isize)
        }
        14 if rank > 0 => a.pad(axis as isize, g.below(3), g.below(3)),
        15..=17 if rank > 0 => {
            let axes: Vec<isize> = (0..rank as isize).filter(|_| g.chance(0.5)).collect();
            let keep = g.chance(0.5);
            match g.below(3) {
                0 => a.sum(&axes, keep) * 0.1,
                1 => a.mean(&axes, keep),
                _ => a.max(&axes, keep),
            }
        }
        18 | 19 if rank >= 2 => {
            // With the other, with itself, or batched.
            let sb = dims_of(b);
            let p = if sb.len() >= 2
                && sb[sb.len() - 2] == sa[rank - 1]
                && sb[..sb.len() - 2] == sa[..rank - 2]
            {
                a.matmul(b)
            } else if g.chance(0.5) {
                a.matmul(&a.t())
            } else {
                a.t().matmul(a)
            };
            if p.numel().unwrap_or(0) > 20_000 {
                return a.clone();
            }
            (p * 0.2).tanh()
        }
        20 if rank > 0 => {
            if g.chance(0.5) {
                a.softmax(axis as isize)
            } else {
                a.log_softmax(axis as isize) * 0.1
            }
        }
        21 if rank > 0 && sa[rank - 1] > 1 => {
            let n = sa[rank - 1];
            let wide = if a.dtype() == DType::F64 {
                DType::F64
            } else {
                DType::F32
            };
            let (w, c) = (leaf(&mut g, &[n], wide, d), leaf(&mut g, &[n], wide, d));
            // The variance of nearly equal values has no digits to compare.
            (a + leaf(&mut g, &[n], a.dtype(), d) * 3.0).layer_norm(&w, &c, 1e-2)
        }
        22 if rank > 0 => {
            let n = sa[axis];
            let ix: Vec<i32> = (0..1 + g.below(5)).map(|_| g.below(n) as i32).collect();
            a.take(&Tensor::from_slice(&ix, &[ix.len()], d), axis as isize)
        }
        23 if rank > 0 => {
            let n = sa[axis];
            let count = a.numel().unwrap();
            let ix: Vec<i32> = (0..count).map(|_| g.below(n) as i32).collect();
            let ix = Tensor::from_slice(&ix, &sa, d);
            if g.chance(0.5) {
                a.gather(&ix, axis as isize)
            } else {
                a.scatter_add(&ix, axis as isize, n).tanh()
            }
        }
        24 if rank > 0 => a.cumsum(axis as isize, g.chance(0.5)).tanh(),
        25 if fits => {
            let f = |x: &[Tensor]| ((&x[0] * &x[1]).gelu() + &x[0] * 0.5).tanh();
            checkpoint(f, &[a, b])
        }
        26 if rank > 1 => {
            let f = |x: &[Tensor]| (x[0].matmul(&x[0].t()) * 0.1).softmax(-1).matmul(&x[0]);
            checkpoint(f, &[a])
        }
        27 => {
            let key = RandomKey::Value {
                stream: s.r,
                micro: round as u32,
            };
            let u = Tensor::random(Distribution::Uniform, &sa, key, None, d);
            (u.ge(0.3)).select(a, 0.0) * (1.0 / 0.7)
        }
        28 if rank > 0 => a.sort(g.chance(0.5)).0,
        29 => a.fma(&(a.square() * 0.1), 0.3).clamp(-2.0, 2.5) + 1e-8 * (round as f64 + 1.3),
        _ => a.abs() * 0.7,
    }
}

struct Built {
    outs: Vec<Tensor>,
    writes: Vec<(usize, Tensor)>,
}

fn build(r: &Recipe, slots: &[Slot], round: u64, d: &Device) -> Built {
    let mut g = Gen::new(r.seed ^ (round << 40) ^ 0x77);
    let [x, y, z] = r.dims;
    // Dtypes do not depend on the round: the second round must find the plan of the first.
    let mut kinds = Gen::new(r.seed ^ 0x1234);
    let shapes: [&[usize]; 5] = [&[x, y, z], &[y, z], &[z], &[y, 1], &[z, x]];
    let leaves: Vec<Tensor> = shapes
        .iter()
        .map(|s| leaf(&mut g, s, float(r, &mut kinds), d))
        .collect();
    let reads: Vec<Tensor> = slots.iter().map(|s| s.read()).collect();
    let mut pool: Vec<Tensor> = leaves.iter().chain(&reads).cloned().collect();
    for s in &r.steps {
        // The newest values more often than the old ones.
        let at = |i: usize| {
            let i = if i.is_multiple_of(3) {
                i % pool.len()
            } else {
                pool.len() - 1 - i % pool.len().min(4)
            };
            pool[i].clone()
        };
        let t = apply(r, s, &at(s.a), &at(s.b), round, d);
        if t.error().is_none() && t.numel().unwrap() <= 60_000 && t.rank().unwrap() <= 5 {
            pool.push(t);
        }
    }
    let n = pool.len();
    let mut outs: Vec<Tensor> = (0..r.outs)
        .map(|i| pool[n - 1 - (i * 3) % n].clone())
        .collect();
    if r.gradient {
        let wide = |t: &Tensor| {
            if t.dtype() == DType::F64 {
                t.clone()
            } else {
                t.cast(DType::F32)
            }
        };
        let loss = outs
            .iter()
            .map(|o| wide(o).square().mean_all())
            .reduce(|a, b| a + b)
            .unwrap();
        let mut wrt: Vec<&Tensor> = leaves.iter().chain(&reads).collect();
        wrt.dedup_by_key(|t| t.id());
        let grads = grad_optional(&loss, &wrt).unwrap();
        outs.push(loss);
        outs.extend(grads.into_iter().flatten());
    }
    let mut w = Gen::new(r.seed ^ 0x9999);
    let writes = (0..slots.len())
        .map(|i| {
            let old = &reads[i];
            let value = match w.below(6) {
                0 => reads[(i + 1) % reads.len()].clone(),
                1 => old.flip(0) + old,
                2 => old * 0.9 + 0.1,
                _ => {
                    let same: Vec<&Tensor> = outs
                        .iter()
                        .chain(&pool)
                        .filter(|t| dims_of(t) == dims_of(old) && t.dtype().is_float())
                        .collect();
                    let v = *w.pick(&same);
                    if w.chance(0.5) {
                        old - v * 0.1
                    } else {
                        v.clone()
                    }
                }
            };
            (i, value.cast(old.dtype()))
        })
        .collect();
    Built { outs, writes }
}

fn slots_of(r: &Recipe, d: &Device) -> Vec<Slot> {
    let mut g = Gen::new(r.seed ^ 0xabc);
    let dtype = float(r, &mut g);
    (0..r.slots)
        .map(|i| {
            let dtype = if g.chance(0.7) {
                dtype
            } else {
                float(r, &mut g)
            };
            Slot::new(
                format!("s{i}"),
                &leaf(&mut g, &[r.dims[1], r.dims[2]], dtype, d),
                d,
            )
            .unwrap()
        })
        .collect()
}

type Bits = Vec<Vec<u8>>;

fn run(b: &Built, slots: &[Slot], one_by_one: bool) -> Result<Bits> {
    let outs: Vec<&Tensor> = b.outs.iter().collect();
    let writes: Vec<(&Slot, &Tensor)> = b.writes.iter().map(|(i, t)| (&slots[*i], t)).collect();
    if one_by_one {
        for o in &outs {
            eval(&[o])?;
        }
    }
    commit(&outs, &writes)?;
    let mut all: Bits = outs.iter().map(|o| o.to_bytes()).collect::<Result<_>>()?;
    for s in slots {
        all.push(s.to_bytes()?);
    }
    Ok(all)
}

fn differs(got: &[f64], want: &Array, tol: f64) -> Option<String> {
    let top = want
        .data
        .iter()
        .filter(|v| v.is_finite())
        .fold(1e-3, |m: f64, v| m.max(v.abs()));
    got.iter()
        .zip(&want.data)
        .enumerate()
        .find_map(|(i, (a, b))| {
            let ok = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tol * top;
            (!ok).then(|| format!("element {i}: {a:e}, the reference says {b:e}"))
        })
}

/// Two rounds of a program on every schedule; what went wrong first.
fn check(r: &Recipe, one: &Device, three: &Device) -> Option<String> {
    one.set_fusion(true);
    let slots = slots_of(r, one);
    let unfused_slots = slots_of(r, one);
    let single_slots = slots_of(r, one);
    let three_slots = slots_of(r, three);
    for round in 0..2u64 {
        let mut wanted: Option<Vec<Array>> = None;
        if r.only.is_some() {
            let b = build(r, &slots, round, one);
            let all = b.outs.iter().chain(b.writes.iter().map(|(_, t)| t));
            match all.map(reference::eval).collect() {
                Ok(w) => wanted = Some(w),
                Err(e) => return Some(format!("reference: {e}")),
            }
        }
        let b = build(r, &slots, round, one);
        let before = one.plans_compiled();
        let fused = match run(&b, &slots, false) {
            Ok(v) => v,
            Err(e) => return Some(format!("fused: {e}")),
        };
        if round == 1 && one.plans_compiled() > before && r.slots == 0 {
            return Some("the second round compiled again".into());
        }
        if let Some(w) = wanted {
            let tol = if r.only == Some(DType::F64) {
                1e-9
            } else {
                2e-3
            };
            let made = b
                .outs
                .iter()
                .map(|t| t.to_f64_vec())
                .chain(slots.iter().map(|s| s.read().to_f64_vec()));
            for (i, (got, want)) in made.zip(&w).enumerate() {
                if let Some(e) = differs(&got.unwrap(), want, tol) {
                    return Some(format!("round {round} result {i}: {e}"));
                }
            }
        }
        one.set_fusion(false);
        let unfused = run(&build(r, &unfused_slots, round, one), &unfused_slots, false);
        one.set_fusion(true);
        let single = run(&build(r, &single_slots, round, one), &single_slots, true);
        let threads = run(&build(r, &three_slots, round, three), &three_slots, false);
        for (name, other) in [
            ("unfused", unfused),
            ("one by one", single),
            ("three threads", threads),
        ] {
            match other {
                Err(e) => return Some(format!("{name}: {e}")),
                Ok(o) => {
                    if let Some(i) = (0..o.len()).find(|&i| o[i] != fused[i]) {
                        let label = b.outs.get(i).map_or("slot".into(), |t| format!("{t:?}"));
                        return Some(format!(
                            "round {round}: {name} differs in result {i} of {} {label}",
                            o.len()
                        ));
                    }
                }
            }
        }
    }
    None
}

/// Leaves out what is not needed for the failure.
fn shrink(mut r: Recipe, one: &Device, three: &Device) -> Recipe {
    let fails = |r: &Recipe| check(r, one, three).is_some();
    let mut again = true;
    while again {
        again = false;
        for i in (0..r.steps.len()).rev() {
            let mut s = r.clone();
            s.steps.remove(i);
            if fails(&s) {
                (r, again) = (s, true);
            }
        }
        for f in [
            |r: &mut Recipe| r.outs = r.outs.saturating_sub(1).max(1),
            |r: &mut Recipe| r.slots = r.slots.saturating_sub(1),
            |r: &mut Recipe| r.gradient = false,
            |r: &mut Recipe| r.dims = r.dims.map(|d| d.min(3)),
        ] {
            let mut s = r.clone();
            f(&mut s);
            let same =
                (s.outs, s.slots, s.gradient, s.dims) == (r.outs, r.slots, r.gradient, r.dims);
            if !same && fails(&s) {
                (r, again) = (s, true);
            }
        }
    }
    r
}

#[test]
fn every_schedule_of_a_random_program_gives_the_same_bits() {
    let env = |n: &str, d: u64| {
        std::env::var(n)
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or(d)
    };
    let (seed, rounds) = (env("BIMETAL_TEST_SEED", 1), env("BIMETAL_FUZZ_ROUNDS", 60));
    let one = Device::new(CpuBackend::new(Some(1)));
    let three = Device::new(CpuBackend::new(Some(3)));
    let mut found: HashMap<String, String> = HashMap::new();
    for i in 0..rounds {
        let r = recipe(seed.wrapping_mul(1_000_003).wrapping_add(i));
        if let Some(e) = check(&r, &one, &three) {
            println!("program {i} of seed {seed}: {e}; now looking for a smaller one");
            let small = shrink(r, &one, &three);
            let text = format!(
                "{e}\n  smaller: {:?}\n  {small:?}",
                check(&small, &one, &three)
            );
            found
                .entry(e.chars().filter(|c| !c.is_ascii_digit()).take(40).collect())
                .or_insert(text);
            if found.len() >= 6 {
                break;
            }
        }
    }
    let all: Vec<String> = found.into_values().collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}
