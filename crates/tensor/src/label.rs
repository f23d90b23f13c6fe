//! Where a node comes from: layer path, source line, forward or backward, recomputation segment.
use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// Where a node of the graph was built.
#[derive(Clone, PartialEq, Eq)]
pub struct Label {
    path: Option<Arc<str>>,
    location: &'static Location<'static>,
    backward: bool,
    segment: u32,
}

#[derive(Clone, Default)]
struct Ambient {
    path: Option<Arc<str>>,
    inherit: Option<Label>,
    location: Option<&'static Location<'static>>,
    segment: u32,
}

thread_local! {
    // The only ambient state: a layer's forward says whose nodes are being built.
    static AMBIENT: RefCell<Ambient> = RefCell::new(Ambient::default());
}

impl Label {
    /// The label of a node built now, by the caller.
    #[track_caller]
    pub fn current() -> Label {
        let location = Location::caller();
        AMBIENT.with_borrow(|a| match &a.inherit {
            Some(l) => Label {
                segment: a.segment.max(l.segment),
                ..l.clone()
            },
            None => Label {
                path: a.path.clone(),
                location: a.location.unwrap_or(location),
                backward: false,
                segment: a.segment,
            },
        })
    }

    /// Builds nodes in `f` as if by the caller's line: an operation made of others shows where the user called it. The outermost
    /// such call wins.
    #[track_caller]
    pub fn located<R>(f: impl FnOnce() -> R) -> R {
        let here = Location::caller();
        let first = AMBIENT.with_borrow_mut(|a| {
            let first = a.location.is_none();
            a.location.get_or_insert(here);
            first
        });
        let _restore =
            first.then(|| Restore::new(|| AMBIENT.with_borrow_mut(|a| a.location = None)));
        f()
    }

    /// The path of the layer, such as `decoder.7.mlp.down`; empty outside of layers.
    pub fn path(&self) -> &str {
        self.path.as_deref().unwrap_or("")
    }

    /// The source line of the operation.
    pub fn location(&self) -> &'static Location<'static> {
        self.location
    }

    /// Whether the node belongs to the backward pass.
    pub fn is_backward(&self) -> bool {
        self.backward
    }

    /// The recomputation segment: 0 for first passes. It takes part in the plan key.
    pub fn segment(&self) -> u32 {
        self.segment
    }

    /// Builds nodes in `f` under the layer path `path`.
    pub fn with_path<R>(path: Arc<str>, f: impl FnOnce() -> R) -> R {
        let _guard = PathGuard::push(path);
        f()
    }

    /// Builds nodes in `f` that inherit this label, marked as backward.
    pub fn backward<R>(&self, f: impl FnOnce() -> R) -> R {
        let label = Label {
            backward: true,
            ..self.clone()
        };
        label.inherited(f)
    }

    /// Builds nodes in `f` that inherit this label unchanged.
    pub fn inherit<R>(&self, f: impl FnOnce() -> R) -> R {
        self.clone().inherited(f)
    }

    fn inherited<R>(self, f: impl FnOnce() -> R) -> R {
        let old = AMBIENT.with_borrow_mut(|a| a.inherit.replace(self));
        let _restore = Restore::new(|| AMBIENT.with_borrow_mut(|a| a.inherit = old));
        f()
    }

    /// Builds nodes in `f` as part of recomputation segment `segment`.
    pub fn with_segment<R>(segment: u32, f: impl FnOnce() -> R) -> R {
        let old = AMBIENT.with_borrow_mut(|a| std::mem::replace(&mut a.segment, segment));
        let _restore = Restore::new(|| AMBIENT.with_borrow_mut(|a| a.segment = old));
        f()
    }
}

struct Restore<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Restore<F> {
    fn new(f: F) -> Restore<F> {
        Restore(Some(f))
    }
}

impl<F: FnOnce()> Drop for Restore<F> {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}

/// While it lives, nodes of this thread are built under a layer path.
#[must_use]
pub struct PathGuard {
    old: Option<Arc<str>>,
}

impl PathGuard {
    /// Sets the layer path of this thread until the guard is dropped.
    pub fn push(path: Arc<str>) -> PathGuard {
        PathGuard {
            old: AMBIENT.with_borrow_mut(|a| a.path.replace(path)),
        }
    }
}

impl Drop for PathGuard {
    fn drop(&mut self) {
        let old = self.old.take();
        AMBIENT.with_borrow_mut(|a| a.path = old);
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(p) = &self.path {
            write!(f, "layer `{p}`, ")?;
        }
        if self.backward {
            write!(f, "backward of ")?;
        }
        write!(f, "{}:{}", self.location.file(), self.location.line())
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
