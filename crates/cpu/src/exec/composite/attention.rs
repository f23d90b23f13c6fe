//! Scaled dot-product attention and its gradients.
use crate::exec::cx::{Compile, Cx, Kernel, Operand};
use bimetal_kernels::attention::{self as kernel, Attention, Heads, HeadsMut};
use bimetal_kernels::gemm::Scratch;
use bimetal_kernels::simd;
use bimetal_tensor::graph::AttentionSpec;
use bimetal_tensor::{ErrorKind, Result};

/// Attention, or its gradients.
pub(crate) struct Attend {
    spec: AttentionSpec,
    grad: bool,
    /// First of three scalar-table entries of the random key.
    random: Option<u32>,
    x: Vec<Operand>,
    y: Vec<Option<Operand>>,
    /// batch, tq, heads, d; tk.
    q: [usize; 4],
    tk: usize,
}

impl Attend {
    pub(crate) fn new(
        spec: AttentionSpec,
        grad: bool,
        random: Option<u32>,
        x: Vec<Operand>,
        y: Vec<Option<Operand>>,
        cx: &Compile<'_>,
    ) -> Result<Attend> {
        let fixed = if grad { 6 } else { 3 };
        let extra = spec.key_mask as usize + spec.dropout.is_some() as usize;
        cx.check(
            x.len() == fixed + extra && y.len() == if grad { 3 } else { 2 },
            "an attention has the wrong number of operands",
        )?;
        cx.check(
            x[..3].iter().all(|d| d.shape.rank() == 4)
                && random.is_some() == spec.dropout.is_some(),
            "operands of an attention have not four axes, or there is no random key",
        )?;
        let (q, k) = (&x[0].shape, &x[1].shape);
        let [b, tq, h, d, tk] = [q[0], q[1], q[2], q[3], k[1]];
        let (big, small) = (b * h * tq, b * h * tk);
        let (queries, keys) = (big * d, small * d);
        let mut want = vec![queries, keys, keys];
        if grad {
            want.extend([queries, big, queries]);
        }
        want.extend(spec.key_mask.then_some(b * tk));
        want.extend(spec.dropout.map(|_| 1));
        let out = if grad {
            vec![queries, keys, keys]
        } else {
            vec![queries, big]
        };
        cx.check(
            x.iter().map(|d| d.numel).eq(want)
                && y.iter()
                    .zip(out)
                    .all(|(d, n)| d.as_ref().is_none_or(|d| d.numel == n)),
            "sizes of an attention do not match",
        )?;
        // Queries, keys and values, and what has their shapes: rows of d elements that may lie apart. The rest is dense.
        let rows = |o: &Operand| {
            o.shape.rank() == 4 && o.strides[3] == 1 && o.strides.iter().all(|s| *s >= 0)
        };
        let dense = |o: &Operand| o.offset == 0 && o.strides == o.shape.strides();
        let loose = if grad { 3 } else { 0 };
        cx.check(
            x[..3].iter().all(rows)
                && x[3..].iter().all(dense)
                && y[..loose].iter().flatten().all(rows)
                && y[loose..].iter().flatten().all(dense),
            "operands of an attention lie apart where they must not",
        )?;
        let q = [b, tq, h, d];
        Ok(Attend {
            spec,
            grad,
            random,
            x,
            y,
            q,
            tk,
        })
    }

    fn heads(&self, cx: &Cx<'_>, i: usize) -> Heads {
        let d = &self.x[i];
        Heads {
            ptr: d.start(cx),
            dtype: d.dtype,
            round_to: None,
            strides: [d.strides[0], d.strides[2], d.strides[1]],
        }
    }

    /// From one batch, head and time of `[b, t, h, d]` to the next.
    fn strides(&self, t: usize) -> [usize; 3] {
        let [_, _, h, d] = self.q;
        [t * h * d, d, h * d]
    }

    /// Result `i` in `[b, t, h, d]`, or `spare` if nobody asks for it.
    fn result(&self, cx: &Cx<'_>, i: usize, t: usize, spare: &mut Option<Scratch>) -> HeadsMut {
        match &self.y[i] {
            Some(d) => HeadsMut {
                ptr: d.start(cx),
                dtype: d.dtype,
                strides: [0, 2, 1].map(|axis| d.strides[axis] as usize),
            },
            None => {
                let strides = self.strides(t);
                let dtype = self.x[i].dtype;
                let bytes = self.q[0] * strides[0] * dtype.size();
                HeadsMut {
                    ptr: spare.insert(Scratch::take::<u8>(bytes)).ptr(),
                    dtype,
                    strides,
                }
            }
        }
    }
}

impl Kernel for Attend {
    fn run(&self, cx: &Cx<'_>) -> std::result::Result<(), ErrorKind> {
        let [batch, tq, heads, d] = self.q;
        let tk = self.tk;
        let fixed = if self.grad { 6 } else { 3 };
        // SAFETY: a Bool is one byte, and the sizes were checked.
        let mask = self
            .spec
            .key_mask
            .then(|| unsafe { cx.slice::<u8>(&self.x[fixed]) });
        // As the decomposition draws: element `(row, key)` of a uniform tensor is kept if it is not below the rate.
        let drop = self.spec.dropout.zip(self.random).map(|(spec, entry)| {
            let key = [cx.scalar(entry) as u32, cx.scalar(entry + 1) as u32];
            let step = &self.x[fixed + self.spec.key_mask as usize];
            // SAFETY: the step is one U32.
            let step = unsafe { *cx.ptr(step.buf).cast::<u32>() };
            let high = [step, cx.scalar(entry + 2) as u32];
            let (rate, keep) = (spec.rate.0 as f32, (1.0 / (1.0 - spec.rate.0)) as f32);
            move |row: usize, first: usize, out: &mut [f32]| {
                simd::fill_uniform(key, high, (row * tk + first) as u64, out);
                for u in out {
                    *u = if *u >= rate { keep } else { 0.0 };
                }
            }
        });
        let spec = Attention {
            batch,
            heads,
            tq,
            tk,
            d,
            scale: self.spec.scale.0 as f32,
            causal: self.spec.causal,
            key_mask: mask,
            dropout: drop.as_ref().map(|f| f as &kernel::Dropout<'_>),
        };
        let (q, k, v) = (self.heads(cx, 0), self.heads(cx, 1), self.heads(cx, 2));
        let mut spare = [None, None, None];
        let [s0, s1, s2] = &mut spare;
        // SAFETY: sizes were checked when the plan was compiled; results share no memory with operands or each other.
        unsafe {
            if self.grad {
                let (y, dy) = (self.heads(cx, 3), self.heads(cx, 5));
                let lse = cx.ptr(self.x[4].buf).cast();
                let dq = self.result(cx, 0, tq, s0);
                let (dk, dv) = (self.result(cx, 1, tk, s1), self.result(cx, 2, tk, s2));
                kernel::attention_grad(&spec, q, k, v, y, lse, dy, dq, dk, dv);
            } else {
                let y = self.result(cx, 0, tq, s0);
                let lse = match &self.y[1] {
                    Some(d) => cx.ptr(d.buf),
                    None => s1.insert(Scratch::take::<u8>(4 * batch * heads * tq)).ptr(),
                };
                kernel::attention(&spec, q, k, v, y, lse.cast());
            }
        }
        Ok(())
    }

    fn work(&self) -> usize {
        let [b, tq, h, d] = self.q;
        (b * h * tq * self.tk).saturating_mul(d / 2 + 8)
    }
}
