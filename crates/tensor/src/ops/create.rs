//! Tensors from values, numbers and random streams.
use super::shape_of;
use crate::graph::{Attr, Distribution, Literal, Op, RandomKey};
use crate::plan::{Meta, register};
use crate::tensor::{Inputs, Outs};
use crate::{DType, Device, Element, Error, Label, Result, Shape, Tensor};

impl Tensor {
    /// A tensor with the given elements in row-major order; the dtype is that of `T`.
    ///
    /// Invalid if the number of elements is not that of `shape`.
    #[track_caller]
    pub fn from_slice<T: Element>(data: &[T], shape: &[usize], device: &Device) -> Tensor {
        Tensor::from_bytes(T::as_bytes(data), shape, T::DTYPE, device)
    }

    /// A tensor from elements as bytes (native order, row-major).
    ///
    /// Invalid if the number of bytes is not that of `shape` and `dtype`.
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], shape: &[usize], dtype: DType, device: &Device) -> Tensor {
        let label = Label::current();
        Tensor::make(|| {
            let shape = shape_of("from_slice", shape)?;
            let want = shape.numel() * dtype.size();
            if bytes.len() != want {
                return Err(Error::shape(
                    "from_slice",
                    &[shape],
                    format!(
                        "a {dtype} tensor of this shape has {} elements, {} were given",
                        shape.numel(),
                        bytes.len() as f64 / dtype.size() as f64
                    ),
                ));
            }
            let buffer = device.alloc(want)?;
            device.backend().upload(&buffer, bytes)?;
            let t = Tensor::raw(
                Op::Data,
                Inputs::new(),
                Outs::from_buf([Meta { shape, dtype }]),
                Some(device.clone()),
                label,
                None,
            );
            let _ = t.node.values[0].set(buffer);
            Ok(t)
        })
    }

    /// A bare number: it takes part in expressions without changing their dtype, and is never rounded to it.
    #[track_caller]
    pub fn scalar(value: f64) -> Tensor {
        Tensor::scalar_as(value, DType::F32)
    }

    /// A bare number in the register dtype of `dtype`.
    #[track_caller]
    pub(crate) fn scalar_as(value: f64, dtype: DType) -> Tensor {
        Tensor::single(
            Op::Scalar(Literal::Value(Attr(value))),
            Inputs::new(),
            Shape::scalar(),
            register(dtype),
        )
    }

    /// A tensor filled with one value, rounded to `dtype`.
    #[track_caller]
    pub fn full(shape: &[usize], value: f64, dtype: DType, device: &Device) -> Tensor {
        let label = Label::current();
        Tensor::make(|| {
            let shape = shape_of("full", shape)?;
            let number = Tensor::scalar_as(
                value,
                if dtype == DType::Bool {
                    DType::F32
                } else {
                    dtype
                },
            );
            let one = Tensor::raw(
                Op::Cast(Default::default()),
                Inputs::from_iter([number]),
                Outs::from_buf([Meta {
                    shape: Shape::scalar(),
                    dtype,
                }]),
                Some(device.clone()),
                label,
                None,
            );
            Ok(one.broadcast_to_shape(shape))
        })
    }

    /// Zeros.
    #[track_caller]
    pub fn zeros(shape: &[usize], dtype: DType, device: &Device) -> Tensor {
        Tensor::full(shape, 0.0, dtype, device)
    }

    /// Ones.
    #[track_caller]
    pub fn ones(shape: &[usize], dtype: DType, device: &Device) -> Tensor {
        Tensor::full(shape, 1.0, dtype, device)
    }

    /// One value in the shape, dtype and device of this tensor.
    #[track_caller]
    pub fn full_like(&self, value: f64) -> Tensor {
        Tensor::make(|| {
            let m = self.valid()?.meta();
            let device = self.known_device("full_like")?;
            Ok(Tensor::full(&m.shape, value, m.dtype, device))
        })
    }

    /// Zeros in the shape, dtype and device of this tensor.
    #[track_caller]
    pub fn zeros_like(&self) -> Tensor {
        self.full_like(0.0)
    }

    /// Ones in the shape, dtype and device of this tensor.
    #[track_caller]
    pub fn ones_like(&self) -> Tensor {
        self.full_like(1.0)
    }

    /// The integers `0..n` (I32).
    #[track_caller]
    pub fn arange(n: usize, device: &Device) -> Tensor {
        Tensor::make(|| {
            if n > i32::MAX as usize {
                return Err(Error::argument(
                    "arange",
                    format!("{n} does not fit an I32 index"),
                ));
            }
            Ok(Tensor::iota(shape_of("arange", &[n])?, 0, device))
        })
    }

    /// The index along `axis` at each element of `shape` (I32).
    #[track_caller]
    pub(crate) fn iota(shape: Shape, axis: usize, device: &Device) -> Tensor {
        Tensor::raw(
            Op::Iota { axis: axis as u8 },
            Inputs::new(),
            Outs::from_buf([Meta {
                shape,
                dtype: DType::I32,
            }]),
            Some(device.clone()),
            Label::current(),
            None,
        )
    }

    /// Random elements: Philox-4x32-10 (Salmon et al. 2011) with the element index as counter. `step` (U32 scalar), if given, enters
    /// the counter, so that a replayed plan draws anew. Bits give U32, the others F32. Has no derivative.
    #[track_caller]
    pub fn random(
        distribution: Distribution,
        shape: &[usize],
        key: RandomKey,
        step: Option<&Tensor>,
        device: &Device,
    ) -> Tensor {
        let label = Label::current();
        Tensor::make(|| {
            let shape = shape_of("random", shape)?;
            let mut inputs = Inputs::new();
            if let Some(s) = step {
                let m = s.valid()?.meta();
                if m.dtype != DType::U32 || m.shape.rank() != 0 {
                    return Err(Error::dtype(
                        "random",
                        &[m.dtype],
                        "the step must be a U32 scalar",
                    ));
                }
                inputs.push(s.clone());
            }
            let dtype = match distribution {
                Distribution::Bits => DType::U32,
                _ => DType::F32,
            };
            Ok(Tensor::raw(
                Op::Random { distribution, key },
                inputs,
                Outs::from_buf([Meta { shape, dtype }]),
                Some(device.clone()),
                label,
                None,
            ))
        })
    }

    /// Uniform in `[0, 1)` (F32): the same numbers for the same seed and element, on every device. Has no derivative.
    #[track_caller]
    pub fn rand(shape: &[usize], seed: u64, device: &Device) -> Tensor {
        let key = RandomKey::seed(seed);
        Tensor::random(Distribution::Uniform, shape, key, None, device)
    }

    /// Standard normal (F32): the same numbers for the same seed and element. Has no derivative.
    #[track_caller]
    pub fn randn(shape: &[usize], seed: u64, device: &Device) -> Tensor {
        let key = RandomKey::seed(seed);
        Tensor::random(Distribution::Normal, shape, key, None, device)
    }

    /// A stand-in for input number `n` of a decomposition or of an exported function.
    pub fn placeholder(n: u32, shape: &[usize], dtype: DType, device: &Device) -> Tensor {
        Tensor::make(|| {
            let shape = shape_of("placeholder", shape)?;
            Ok(Tensor::raw(
                Op::Placeholder(n),
                Inputs::new(),
                Outs::from_buf([Meta { shape, dtype }]),
                Some(device.clone()),
                Label::current(),
                None,
            ))
        })
    }

    #[track_caller]
    pub(crate) fn known_device(&self, op: &'static str) -> Result<&Device> {
        self.device().ok_or_else(|| {
            Error::device(
                op,
                "a bare number has no device; use `Tensor::full(shape, value, dtype, device)`",
            )
        })
    }
}
