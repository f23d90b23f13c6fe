//! Element-wise functions, comparison, selection and casts.
use crate::graph::{Binary, Distribution, Literal, Op, RandomKey, Unary};
use crate::plan::register;
use crate::tensor::Inputs;
use crate::{CastMode, DType, Error, Result, Shape, Tensor};

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(&self) -> Tensor {
            self.unary(Unary::$op)
        }
    )*};
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(&self, rhs: impl Into<Tensor>) -> Tensor {
            self.binary(Binary::$op, &rhs.into())
        }
    )*};
}

impl Tensor {
    unary! {
        /// `-x`.
        neg => Neg;
        /// The absolute value.
        abs => Abs;
        /// -1, 0 or 1.
        sign => Sign;
        /// The square root.
        sqrt => Sqrt;
        /// `1 / sqrt(x)`.
        rsqrt => Rsqrt;
        /// `1 / x`.
        recip => Recip;
        /// The exponential.
        exp => Exp;
        /// `exp(x) - 1`, exact near 0.
        expm1 => Expm1;
        /// The natural logarithm.
        log => Log;
        /// `log(1 + x)`, exact near 0.
        log1p => Log1p;
        /// The sine.
        sin => Sin;
        /// The cosine.
        cos => Cos;
        /// The hyperbolic tangent.
        tanh => Tanh;
        /// `1 / (1 + exp(-x))`.
        sigmoid => Sigmoid;
        /// The error function.
        erf => Erf;
        /// `max(x, 0)`.
        relu => Relu;
        /// `x sigmoid(x)`.
        silu => Silu;
        /// `x Phi(x)` with the exact normal distribution function; f32 inside.
        gelu => Gelu;
        /// GELU's tanh approximation; f32 inside.
        gelu_tanh => GeluTanh;
        /// `log(1 + exp(x))`.
        softplus => Softplus;
        /// The largest integer not above x.
        floor => Floor;
        /// The smallest integer not below x.
        ceil => Ceil;
        /// The nearest integer, ties to even.
        round => Round;
        /// The integer part.
        trunc => Trunc;
        /// `x * x`.
        square => Square;
        /// Logical negation (Bool).
        logical_not => Not;
        /// Whether x is neither infinite nor NaN (Bool). Has no derivative.
        is_finite => IsFinite;
        /// Whether x is NaN (Bool). Has no derivative.
        is_nan => IsNan;
    }

    binary! {
        /// Addition, with broadcasting.
        add => Add;
        /// Subtraction, with broadcasting.
        sub => Sub;
        /// Multiplication, with broadcasting.
        mul => Mul;
        /// Division, with broadcasting; integers are an error (cast first).
        div => Div;
        /// The larger of two, NaN if either is NaN.
        maximum => Max;
        /// The smaller of two, NaN if either is NaN.
        minimum => Min;
        /// `x` to the power of `rhs`.
        pow => Pow;
        /// The remainder with the sign of the divisor, as Python's `%`.
        remainder => Rem;
        /// `x == rhs` (Bool).
        eq => Eq;
        /// `x != rhs` (Bool).
        ne => Ne;
        /// `x < rhs` (Bool).
        lt => Lt;
        /// `x <= rhs` (Bool).
        le => Le;
        /// `x > rhs` (Bool).
        gt => Gt;
        /// `x >= rhs` (Bool).
        ge => Ge;
        /// Both (Bool).
        logical_and => And;
        /// Either (Bool).
        logical_or => Or;
        /// Exactly one (Bool).
        logical_xor => Xor;
    }

    /// An element-wise function by its tag. Floats of 8 and 16 bits compute in f32 and round once.
    #[track_caller]
    pub fn unary(&self, op: Unary) -> Tensor {
        Tensor::make(|| {
            let m = self.valid()?.meta();
            let logical = op == Unary::Not;
            let any_number = matches!(
                op,
                Unary::Neg | Unary::Abs | Unary::Sign | Unary::Square | Unary::Relu
            );
            let test = matches!(op, Unary::IsFinite | Unary::IsNan);
            let ok = match m.dtype {
                DType::Bool => logical,
                d if d.is_float() => !logical,
                d => any_number && !(d == DType::U32 && op == Unary::Neg),
            };
            if !ok {
                let want = if logical {
                    "a Bool tensor"
                } else {
                    "a float tensor"
                };
                return Err(Error::dtype(
                    op.name(),
                    &[m.dtype],
                    format!("expected {want}; use `cast`"),
                ));
            }
            let dtype = if test { DType::Bool } else { m.dtype };
            Ok(Tensor::single(
                Op::Unary(op),
                Inputs::from_iter([self.clone()]),
                m.shape,
                dtype,
            ))
        })
    }

    /// An element-wise function of two operands by its tag, with broadcasting and promotion: bare numbers never change the
    /// dtype, mixed floats promote to the wider (f16 with bf16 gives f32).
    #[track_caller]
    pub fn binary(&self, op: Binary, rhs: &Tensor) -> Tensor {
        Tensor::make(|| {
            let name = op.name();
            let (a, b) = promote_pair(name, self, rhs)?;
            let dtype = if a.is_scalar_literal() {
                b.dtype()
            } else {
                a.dtype()
            };
            let logical = op.is_logical();
            if (dtype == DType::Bool) != logical && !matches!(op, Binary::Eq | Binary::Ne) {
                let want = if logical {
                    "Bool tensors"
                } else {
                    "numbers; use `cast`"
                };
                return Err(Error::dtype(
                    name,
                    &[self.dtype(), rhs.dtype()],
                    format!("expected {want}"),
                ));
            }
            if !dtype.is_float() && matches!(op, Binary::Div | Binary::Pow) {
                return Err(Error::dtype(
                    name,
                    &[self.dtype(), rhs.dtype()],
                    "not defined for integers: cast to a float dtype first",
                ));
            }
            let shape = broadcast_shape(name, &[&a, &b])?;
            let out = if op.is_comparison() {
                DType::Bool
            } else {
                dtype
            };
            Ok(Tensor::single(
                Op::Binary(op),
                Inputs::from_iter([a.stretch(shape), b.stretch(shape)]),
                shape,
                out,
            ))
        })
    }

    /// `self` (Bool) `? a : b`, with broadcasting and promotion of `a` and `b`.
    #[track_caller]
    pub fn select(&self, a: impl Into<Tensor>, b: impl Into<Tensor>) -> Tensor {
        let (a, b) = (a.into(), b.into());
        Tensor::make(|| {
            let c = self.valid()?;
            if c.dtype() != DType::Bool {
                return Err(Error::dtype(
                    "select",
                    &[c.dtype()],
                    "the condition must be Bool",
                ));
            }
            let (a, b) = promote_pair("select", &a, &b)?;
            let dtype = if a.is_scalar_literal() {
                b.dtype()
            } else {
                a.dtype()
            };
            let shape = broadcast_shape("select", &[c, &a, &b])?;
            Ok(Tensor::single(
                Op::Select,
                Inputs::from_iter([c.stretch(shape), a.stretch(shape), b.stretch(shape)]),
                shape,
                dtype,
            ))
        })
    }

    /// `self * b + c` rounded once, with broadcasting; all of one float dtype.
    #[track_caller]
    pub fn fma(&self, b: impl Into<Tensor>, c: impl Into<Tensor>) -> Tensor {
        let (b, c) = (b.into(), c.into());
        Tensor::make(|| {
            let d = self.valid()?.dtype();
            let b = if b.is_scalar_literal() {
                b.literal_for("fma", d)?
            } else {
                b.clone()
            };
            let c = if c.is_scalar_literal() {
                c.literal_for("fma", d)?
            } else {
                c.clone()
            };
            let same = |t: &Tensor| t.is_scalar_literal() || t.dtype() == d;
            if !d.is_float() || !same(b.valid()?) || !same(c.valid()?) {
                return Err(Error::dtype(
                    "fma",
                    &[d, b.dtype(), c.dtype()],
                    "expected three tensors of one float dtype",
                ));
            }
            let shape = broadcast_shape("fma", &[self, &b, &c])?;
            Ok(Tensor::single(
                Op::Fma,
                Inputs::from_iter([self.stretch(shape), b.stretch(shape), c.stretch(shape)]),
                shape,
                d,
            ))
        })
    }

    /// Conversion: floats round once to nearest even and overflow to infinity, floats to integers truncate and saturate (NaN
    /// gives 0), integers wrap, to Bool is `!= 0`. The gradient is cast back.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Tensor {
        self.cast_with(dtype, CastMode::Nonsaturating)
    }

    /// As [`Tensor::cast`], with the largest finite value instead of overflow if `mode` is saturating.
    #[track_caller]
    pub fn cast_with(&self, dtype: DType, mode: CastMode) -> Tensor {
        if self.error().is_some() || (self.dtype() == dtype && !self.is_scalar_literal()) {
            return self.clone();
        }
        Tensor::make(|| {
            let m = self.meta();
            Ok(Tensor::single(
                Op::Cast(mode),
                Inputs::from_iter([self.clone()]),
                m.shape,
                dtype,
            ))
        })
    }

    /// Conversion to an 8- or 16-bit float that rounds to one of the two neighbours at random, so that the mean is the value (stochastic rounding, Gupta et al. 2015,
    /// "Deep Learning with Limited Numerical Precision"): a sum of many small changes is not lost. By way of f32.
    ///
    /// The draw is that of [`Tensor::random`] with `key` and `step`. What the dtype can hold stays as it is; a finite value beyond its largest becomes that; infinities
    /// and NaN are as in [`Tensor::cast`]. The gradient is cast back.
    #[track_caller]
    pub fn cast_stochastic(&self, dtype: DType, key: RandomKey, step: Option<&Tensor>) -> Tensor {
        Tensor::make(|| {
            let m = self.valid()?.meta();
            let narrow = dtype.is_float() && dtype.size() <= 2;
            if !m.dtype.is_float() || !narrow {
                return Err(Error::dtype(
                    "cast_stochastic",
                    &[m.dtype, dtype],
                    "expected a float tensor and an 8- or 16-bit float to round to; use `cast` for others",
                ));
            }
            if m.dtype == dtype {
                return Ok(self.clone());
            }
            let Some(device) = self.device() else {
                return Err(Error::device(
                    "cast_stochastic",
                    "a bare number has no device; use `Tensor::full(shape, value, dtype, device)`",
                ));
            };
            let noise = Tensor::random(Distribution::Uniform, &m.shape, key, step, device);
            Ok(Tensor::single(
                Op::CastStochastic,
                Inputs::from_iter([self.cast(DType::F32), noise]),
                m.shape,
                dtype,
            ))
        })
    }

    /// Limits to `[low, high]`; NaN stays NaN.
    #[track_caller]
    pub fn clamp(&self, low: f64, high: f64) -> Tensor {
        self.maximum(low).minimum(high)
    }

    /// The element-wise `x^n` by repeated multiplication, for small integer powers.
    #[track_caller]
    pub fn powi(&self, n: u32) -> Tensor {
        match n {
            0 => self.ones_like(),
            1 => self.clone(),
            n if n % 2 == 0 => self.powi(n / 2).square(),
            n => self.powi(n - 1) * self,
        }
    }

    /// This bare number in the register dtype of `dtype`.
    #[track_caller]
    pub(crate) fn literal_for(&self, op: &'static str, dtype: DType) -> Result<Tensor> {
        let Op::Scalar(Literal::Value(v)) = self.op() else {
            return Ok(self.clone());
        };
        if self.dtype() == register(dtype) && dtype.is_float() {
            return Ok(self.clone());
        }
        if !dtype.is_float() && dtype != DType::Bool && v.0.fract() != 0.0 {
            return Err(Error::dtype(
                op,
                &[dtype],
                format!(
                    "the number {} is no integer: cast the tensor to a float dtype first",
                    v.0
                ),
            ));
        }
        Ok(Tensor::scalar_as(v.0, dtype))
    }

    /// Broadcast to `shape` unless it is a bare number, which fits every shape.
    pub(crate) fn stretch(&self, shape: Shape) -> Tensor {
        if self.is_scalar_literal() || self.meta().shape == shape {
            return self.clone();
        }
        self.broadcast_to_shape(shape)
    }
}

#[track_caller]
fn promote_pair(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    a.valid()?;
    b.valid()?;
    Ok(match (a.is_scalar_literal(), b.is_scalar_literal()) {
        (true, true) => (a.clone(), b.clone()),
        (true, false) => (a.literal_for(op, b.dtype())?, b.clone()),
        (false, true) => (a.clone(), b.literal_for(op, a.dtype())?),
        (false, false) => {
            let d = DType::promote(a.dtype(), b.dtype());
            (a.cast(d), b.cast(d))
        }
    })
}

#[track_caller]
pub(crate) fn broadcast_shape(op: &'static str, ts: &[&Tensor]) -> Result<Shape> {
    let mut s = Shape::scalar();
    for t in ts {
        s = s.broadcast(&t.meta().shape).ok_or_else(|| {
            let found: Vec<_> = ts.iter().map(|t| t.meta().shape).collect();
            Error::shape(
                op,
                &found,
                "shapes do not broadcast: sizes must be equal or 1",
            )
        })?;
    }
    Ok(s)
}
