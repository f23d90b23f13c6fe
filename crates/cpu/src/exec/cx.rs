//! What kernels know while they are compiled and while they run.
use super::view::View;
use bimetal_tensor::plan::{Access, BufDesc, Dense, Place, Plan, Strided};
use bimetal_tensor::{DType, Error, ErrorKind, Result, Shape, Strides};

/// A compiled step.
pub(crate) trait Kernel: Send + Sync {
    /// Runs it. An error means that nothing was written.
    fn run(&self, cx: &Cx<'_>) -> Result<(), ErrorKind>;

    /// A rough number of elementary operations: small plans run on the calling thread.
    fn work(&self) -> usize;
}

/// A plan's buffers and scalars during a run.
pub(crate) struct Cx<'a> {
    pub(crate) ptrs: Vec<*mut u8>,
    pub(crate) scalars: &'a [f64],
}

// SAFETY: the buffers outlive the run, and kernels give disjoint parts of what they write to their tasks.
unsafe impl Send for Cx<'_> {}
// SAFETY: as above.
unsafe impl Sync for Cx<'_> {}

impl Cx<'_> {
    /// The start of a buffer.
    pub(crate) fn ptr(&self, buf: usize) -> *mut u8 {
        self.ptrs[buf]
    }

    /// An entry of the scalar table.
    pub(crate) fn scalar(&self, entry: u32) -> f64 {
        self.scalars[entry as usize]
    }

    /// A dense operand.
    ///
    /// # Safety
    /// `T` is the operand's dtype in memory, and nobody writes the operand meanwhile.
    pub(crate) unsafe fn slice<T>(&self, d: &Operand) -> &[T] {
        debug_assert_eq!(size_of::<T>(), d.dtype.size());
        // SAFETY: buffers are aligned to 64 bytes and as large as `Compile::dense` has checked.
        unsafe { std::slice::from_raw_parts(self.ptr(d.buf).cast(), d.numel) }
    }
}

/// An operand whose buffer has been checked; dense unless it came from [`Compile::strided`].
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) buf: usize,
    pub(crate) offset: usize,
    pub(crate) strides: Strides,
    pub(crate) numel: usize,
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
}

impl Operand {
    /// The first element.
    pub(crate) fn start(&self, cx: &Cx<'_>) -> *mut u8 {
        let bytes = self.offset * self.dtype.size();
        cx.ptr(self.buf).wrapping_add(bytes)
    }
}

/// A plan while it is compiled.
pub(crate) struct Compile<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) step: usize,
}

impl Compile<'_> {
    /// An error about the plan unless `ok`.
    pub(crate) fn check(&self, ok: bool, what: &str) -> Result<()> {
        if ok { Ok(()) } else { Err(self.error(what)) }
    }

    /// An error about the plan.
    pub(crate) fn error(&self, what: &str) -> Error {
        let detail = format!("step {} of the plan is not valid: {what}", self.step);
        let node = self.plan.steps.get(self.step).map(|s| s.node as usize);
        match node.and_then(|n| self.plan.labels.get(n)) {
            Some(l) => Error::at("compile", ErrorKind::Device { detail }, l.clone()),
            None => Error::device("compile", detail),
        }
    }

    pub(crate) fn desc(&self, buf: u32) -> Result<&BufDesc> {
        self.check(
            (buf as usize) < self.plan.buffers.len(),
            "a buffer is missing",
        )?;
        Ok(&self.plan.buffers[buf as usize])
    }

    /// Compiled accesses over `domain`, checked against their buffers.
    pub(crate) fn views(&self, accesses: &[Access], domain: &Shape) -> Result<Vec<View>> {
        accesses.iter().map(|a| self.view(a, domain)).collect()
    }

    /// A compiled access over `domain`.
    pub(crate) fn view(&self, access: &Access, domain: &Shape) -> Result<View> {
        let desc = self.desc(access.buf)?;
        self.check(
            access.strides.len() == domain.rank(),
            "an access has another rank than its domain",
        )?;
        self.check(
            access.dtype == desc.dtype,
            "an access has another dtype than its buffer",
        )?;
        let view = View::new(access, domain);
        if let Some((lo, hi)) = view.bounds() {
            self.check(
                lo >= 0 && hi < desc.numel as isize,
                "an access leaves its buffer",
            )?;
        }
        Ok(view)
    }

    /// A dense operand.
    pub(crate) fn dense(&self, d: &Dense) -> Result<Operand> {
        let desc = self.desc(d.buf)?;
        self.check(
            d.dtype == desc.dtype && d.shape.numel() <= desc.numel,
            "an operand does not fit its buffer",
        )?;
        Ok(Operand {
            buf: d.buf as usize,
            offset: 0,
            strides: d.shape.strides(),
            numel: d.shape.numel(),
            shape: d.shape,
            dtype: d.dtype,
        })
    }

    /// An operand that may lie apart.
    pub(crate) fn strided(&self, s: &Strided) -> Result<Operand> {
        self.view(&s.access, &s.shape)?;
        Ok(Operand {
            buf: s.access.buf as usize,
            offset: s.access.offset,
            strides: s.access.strides,
            numel: s.shape.numel(),
            shape: s.shape,
            dtype: s.access.dtype,
        })
    }

    /// Whether two buffers share memory.
    pub(crate) fn overlap(&self, a: usize, b: usize) -> bool {
        let (x, y) = (&self.plan.buffers[a], &self.plan.buffers[b]);
        match (x.place, y.place) {
            (Place::Arena(p), Place::Arena(q)) => p < q + y.bytes() && q < p + x.bytes(),
            (p, q) => p == q,
        }
    }
}
