//! Where a number was last read: asking for a loss before its gradients runs the forward pass twice, and nobody sees it.
use crate::Tensor;
use crate::tensor::NodeId;
use std::cell::Cell;
use std::panic::Location;

thread_local! {
    static LAST: Cell<Option<(NodeId, &'static Location<'static>)>> = const { Cell::new(None) };
}

pub(super) fn note(t: &Tensor, here: &'static Location<'static>) {
    LAST.set(Some((t.id(), here)));
}

/// The line that asked for the value of `t` by [`Tensor::item`], if that was the last such call of this thread; debug builds only.
pub fn last_read(t: &Tensor) -> Option<&'static Location<'static>> {
    let computed = t.value().is_some() && !t.inputs().is_empty();
    LAST.get()
        .filter(|(id, _)| computed && *id == t.id())
        .map(|(_, line)| line)
}
