//! Where the buffers of a plan live: lifetimes, and offsets in the arena.
use crate::plan::{BufId, Fused, Kernel};

/// What storage buffers of WebGPU want of an offset.
const ALIGN: usize = 256;

/// The buffers a kernel reads and writes.
pub(crate) fn touched(k: &Kernel) -> (Vec<BufId>, Vec<BufId>) {
    let (mut r, mut w) = (Vec::new(), Vec::new());
    let mut fused = |f: &Fused, r: &mut Vec<BufId>| {
        r.extend(f.inputs.iter().map(|a| a.buf));
        w.extend(f.outputs.iter().map(|a| a.buf));
    };
    match k {
        Kernel::Map { fused: f, .. } => fused(f, &mut r),
        Kernel::Reduce {
            prologue, epilogue, ..
        } => {
            fused(prologue, &mut r);
            fused(epilogue, &mut r);
        }
        Kernel::Matmul { a, b, epilogue, .. } => {
            r.extend([a.access.buf, b.access.buf]);
            fused(epilogue, &mut r);
        }
        Kernel::Conv2d {
            input,
            weight,
            epilogue,
            ..
        } => {
            r.extend([input.buf, weight.buf]);
            fused(epilogue, &mut r);
        }
        Kernel::ArgReduce { input, output, .. } => {
            r.push(input.buf);
            w.push(*output);
        }
        Kernel::Zero { output } => w.push(*output),
        Kernel::MaxPool2d {
            input,
            values,
            indices,
            ..
        }
        | Kernel::Sort {
            input,
            values,
            indices,
            ..
        } => {
            r.push(input.buf);
            w.extend(values.iter().chain(indices).map(|d| d.buf));
        }
        Kernel::AvgPool2d { input, output, .. }
        | Kernel::CumSum { input, output, .. }
        | Kernel::AllReduce { input, output, .. }
        | Kernel::AvgPool2dGrad {
            grad: input,
            output,
            ..
        } => {
            r.push(input.buf);
            w.push(output.buf);
        }
        Kernel::Conv2dGradInput {
            weight: a,
            grad: b,
            output,
            ..
        }
        | Kernel::Conv2dGradWeight {
            input: a,
            grad: b,
            output,
            ..
        }
        | Kernel::MaxPool2dGrad {
            indices: a,
            grad: b,
            output,
            ..
        }
        | Kernel::Take {
            input: a,
            index: b,
            output,
            ..
        }
        | Kernel::TakeGrad {
            index: a,
            update: b,
            output,
            ..
        }
        | Kernel::GatherAlong {
            input: a,
            index: b,
            output,
            ..
        }
        | Kernel::ScatterAlong {
            index: a,
            update: b,
            output,
            ..
        } => {
            r.extend([a.buf, b.buf]);
            w.push(output.buf);
        }
        Kernel::Composite {
            inputs, outputs, ..
        } => {
            r.extend(inputs.iter().map(|d| d.access.buf));
            w.extend(outputs.iter().flatten().map(|d| d.access.buf));
        }
        Kernel::Custom {
            inputs, outputs, ..
        } => {
            r.extend(inputs.iter().map(|d| d.buf));
            w.extend(outputs.iter().map(|d| d.buf));
        }
    }
    (r, w)
}

/// Gives every temporary an offset: `lives[b]` is the first and last step of buffer `b`, `bytes[b]` its size. Returns offsets
/// and the arena's size.
pub(crate) fn arrange(
    lives: &[Option<(usize, usize)>],
    bytes: &[usize],
    steps: usize,
) -> (Vec<usize>, usize) {
    let mut born: Vec<Vec<usize>> = vec![Vec::new(); steps];
    let mut dead: Vec<Vec<usize>> = vec![Vec::new(); steps];
    for (b, l) in lives.iter().enumerate() {
        if let Some((from, to)) = *l {
            born[from].push(b);
            dead[to].push(b);
        }
    }
    let mut offsets = vec![0; bytes.len()];
    let mut free: Vec<(usize, usize)> = Vec::new(); // (offset, size), ordered by offset
    let mut end = 0;
    for step in 0..steps {
        born[step].sort_unstable_by_key(|&b| std::cmp::Reverse(bytes[b]));
        for &b in &born[step] {
            let size = bytes[b].max(1).next_multiple_of(ALIGN);
            let best = free
                .iter()
                .enumerate()
                .filter(|(_, f)| f.1 >= size)
                .min_by_key(|(_, f)| f.1)
                .map(|(i, _)| i);
            match best {
                Some(i) => {
                    offsets[b] = free[i].0;
                    if free[i].1 == size {
                        free.remove(i);
                    } else {
                        free[i] = (free[i].0 + size, free[i].1 - size);
                    }
                }
                None => {
                    // Grow the last hole if it touches the end.
                    match free.last().copied() {
                        Some((at, n)) if at + n == end => {
                            free.pop();
                            offsets[b] = at;
                            end = at + size;
                        }
                        _ => {
                            offsets[b] = end;
                            end += size;
                        }
                    }
                }
            }
        }
        for &b in &dead[step] {
            let size = bytes[b].max(1).next_multiple_of(ALIGN);
            let i = free.partition_point(|f| f.0 < offsets[b]);
            free.insert(i, (offsets[b], size));
            if i + 1 < free.len() && free[i].0 + free[i].1 == free[i + 1].0 {
                free[i].1 += free[i + 1].1;
                free.remove(i + 1);
            }
            if i > 0 && free[i - 1].0 + free[i - 1].1 == free[i].0 {
                free[i - 1].1 += free[i].1;
                free.remove(i);
            }
        }
    }
    (offsets, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_alive_together_never_overlap() {
        let mut x = 7u64;
        let mut next = |n: u64| {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        for _ in 0..50 {
            let steps = 40;
            let lives: Vec<_> = (0..60)
                .map(|_| {
                    let a = next(steps) as usize;
                    Some((a, a + next(steps - a as u64) as usize))
                })
                .collect();
            let bytes: Vec<usize> = (0..60).map(|_| next(5000) as usize).collect();
            let (at, end) = arrange(&lives, &bytes, steps as usize);
            for i in 0..60 {
                assert!(at[i] + bytes[i] <= end && at[i] % ALIGN == 0);
                for j in 0..i {
                    let (a, b) = (lives[i].unwrap(), lives[j].unwrap());
                    let together = a.0 <= b.1 && b.0 <= a.1;
                    let overlap = at[i] < at[j] + bytes[j] && at[j] < at[i] + bytes[i];
                    assert!(!(together && overlap), "{i} {j}");
                }
            }
        }
    }
}
