//! What is known of a tensor that is not finite.
use bimetal_tensor::graph::Op;
use bimetal_tensor::{DType, Error, ErrorKind, Label, Result, Shape, Slot, Tensor, eval};
use std::fmt;

/// A tensor with elements that are not finite.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NonFinite {
    /// The name it was given, that of its state slot, or empty.
    pub name: String,
    /// The operation that computed it.
    pub op: &'static str,
    /// Which of the operation's results it is.
    pub output: usize,
    /// Layer path, source line, and whether it belongs to the backward pass.
    pub label: Label,
    /// The dtype.
    pub dtype: DType,
    /// The shape.
    pub shape: Shape,
    /// The number of NaNs. All three counts are 0 if the elements were not counted, because only the layer is known.
    pub nan: usize,
    /// The number of elements that are plus infinity.
    pub plus_inf: usize,
    /// The number of elements that are minus infinity.
    pub minus_inf: usize,
    /// What the operation was given, numbers of the code left out; empty where that was not looked at.
    pub inputs: Vec<InputRange>,
}

/// The range of an operand.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct InputRange {
    /// The path of the parameter it is made of by casts and views, or else the operation that computed it.
    pub name: String,
    /// The dtype.
    pub dtype: DType,
    /// The shape.
    pub shape: Shape,
    /// The smallest finite element; plus infinity if there is none.
    pub min: f64,
    /// The largest finite element; minus infinity if there is none.
    pub max: f64,
    /// The number of elements that are not finite.
    pub non_finite: usize,
}

impl NonFinite {
    /// The path of the layer, such as `decoder.7.mlp.down`; empty outside of layers.
    pub fn path(&self) -> &str {
        self.label.path()
    }

    /// As an error.
    pub fn into_error(self) -> Error {
        let detail = self.text();
        Error::at(self.op, ErrorKind::Other { detail }, self.label)
    }

    /// What is known without counting.
    pub(super) fn place(t: &Tensor) -> Result<NonFinite> {
        Ok(NonFinite {
            name: t.slot().map_or("", Slot::name).to_string(),
            op: t.op().name(),
            output: t.output_index(),
            label: t.label().clone(),
            dtype: t.dtype(),
            shape: t.shape()?,
            nan: 0,
            plus_inf: 0,
            minus_inf: 0,
            inputs: Vec::new(),
        })
    }

    fn text(&self) -> String {
        let mut text = match &self.name[..] {
            "" => String::new(),
            name => format!("`{name}`, "),
        };
        text += &format!(
            "output {} ({} {:?}) is not finite",
            self.output, self.dtype, self.shape
        );
        if self.nan + self.plus_inf + self.minus_inf > 0 {
            text += &format!(
                ": {} NaN, {} +Inf, {} -Inf of {} elements",
                self.nan,
                self.plus_inf,
                self.minus_inf,
                self.shape.numel()
            );
        }
        for (i, input) in self.inputs.iter().enumerate() {
            text += if i == 0 { "; of " } else { ", " };
            text += &input.to_string();
        }
        text
    }
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (at {})", self.op, self.text(), self.label)
    }
}

impl fmt::Display for InputRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {:?}", self.name, self.dtype, self.shape)?;
        if self.min <= self.max {
            write!(f, " from {:.3e} to {:.3e}", self.min, self.max)?;
        }
        match self.non_finite {
            0 => write!(f, ")"),
            n => write!(f, ", {n} not finite)"),
        }
    }
}

/// The numbers of NaNs, plus and minus infinities (I32 scalars).
pub(super) fn counts(t: &Tensor) -> [Tensor; 3] {
    let count = |b: Tensor| b.cast(DType::I32).sum_all();
    [
        count(t.is_nan()),
        count(t.eq(f64::INFINITY)),
        count(t.eq(f64::NEG_INFINITY)),
    ]
}

/// What the evaluated `counts` of `t` say; `None` if it is finite.
pub(super) fn report(name: &str, t: &Tensor, counts: &[Tensor; 3]) -> Result<Option<NonFinite>> {
    let mut n = [0usize; 3];
    for (n, c) in n.iter_mut().zip(counts) {
        *n = c.item()? as usize;
    }
    if n == [0; 3] {
        return Ok(None);
    }
    Ok(Some(NonFinite {
        name: name.to_string(),
        nan: n[0],
        plus_inf: n[1],
        minus_inf: n[2],
        ..NonFinite::place(t)?
    }))
}

/// All facts about `t`, in one plan; `None` if it is finite.
pub(super) fn examine(t: &Tensor) -> Result<Option<NonFinite>> {
    let counts = counts(t);
    let mut inputs = Vec::new();
    for x in t.inputs() {
        if !x.dtype().is_float() || x.device().is_none() || x.numel()? == 0 {
            continue;
        }
        let finite = x.is_finite();
        let limit = |default: f64| finite.select(x, default).cast(DType::F64);
        let range = [
            limit(f64::INFINITY).min(&[], false),
            limit(f64::NEG_INFINITY).max(&[], false),
            finite.logical_not().cast(DType::I32).sum_all(),
        ];
        inputs.push((x, range));
    }
    let all = inputs.iter().flat_map(|(_, r)| r);
    eval(&counts.iter().chain(all).collect::<Vec<_>>())?;
    let Some(mut found) = report(t.slot().map_or("", Slot::name), t, &counts)? else {
        return Ok(None);
    };
    for (x, [min, max, non_finite]) in &inputs {
        found.inputs.push(InputRange {
            name: name_of(x),
            dtype: x.dtype(),
            shape: x.shape()?,
            min: min.item()?,
            max: max.item()?,
            non_finite: non_finite.item()? as usize,
        });
    }
    Ok(Some(found))
}

/// The parameter that `t` is made of by casts and views, or its operation.
fn name_of(t: &Tensor) -> String {
    let mut at = t;
    while let (true, [only]) = (
        at.op().is_view() || matches!(at.op(), Op::Cast(_)),
        at.inputs(),
    ) {
        at = only;
    }
    match at.slot() {
        Some(slot) => format!("`{}`", slot.name()),
        None => format!("`{}`", t.op().name()),
    }
}
