//! Values of tensors on the host.
use super::read;
use crate::graph::Op;
use crate::tensor::{Inputs, Outs};
use crate::{DType, Device, Element, Error, Result, Tensor};
use std::panic::Location;

impl Tensor {
    /// Computes the value, and keeps it.
    #[track_caller]
    pub fn eval(&self) -> Result<()> {
        super::eval(&[self])
    }

    /// Computes the value and returns it as a leaf: the same memory without the graph behind it, which can then be freed. Gradients stop there.
    #[track_caller]
    pub fn settle(&self) -> Result<Tensor> {
        self.eval()?;
        let Some(buffer) = self.value() else {
            return Err(Error::other("settle", "the value was not kept"));
        };
        let leaf = Tensor::raw(
            Op::Data,
            Inputs::new(),
            Outs::from_buf([self.meta()]),
            self.device().cloned(),
            self.label().clone(),
            None,
        );
        let _ = leaf.node.values[0].set(buffer.clone());
        Ok(leaf)
    }

    /// Computes the elements' bytes, row-major.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.eval()?;
        let m = self.meta();
        let mut bytes = vec![0u8; m.shape.numel() * m.dtype.size()];
        let (Some(b), Some(d)) = (self.value(), self.device()) else {
            return Err(Error::other("to_vec", "the value was not kept"));
        };
        d.backend().download(b, &mut bytes)?;
        Ok(bytes)
    }

    /// Computes the elements, row-major; `T` must be the tensor's dtype.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let d = self.check()?.dtype();
        if d != T::DTYPE {
            return Err(Error::dtype(
                "to_vec",
                &[d],
                format!("{} elements were asked for; use `cast` first", T::DTYPE),
            ));
        }
        let bytes = self.to_bytes()?;
        T::vec_from_bytes(&bytes).map_err(|e| Error::other("to_vec", e.to_string()))
    }

    /// Computes the elements as f64, whatever the dtype.
    #[track_caller]
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        self.check()?;
        let bytes = self.to_bytes()?;
        macro_rules! read {
            ($($d:ident => $t:ty),*) => {
                match self.dtype() {
                    $(DType::$d => <$t>::vec_from_bytes(&bytes)
                        .map(|v| v.into_iter().map(Element::to_f64).collect())
                        .map_err(|e| Error::other("to_vec", e.to_string())),)*
                }
            };
        }
        read!(Bool => bool, U8 => u8, U32 => u32, I32 => i32, I64 => i64, F8E4M3 => crate::F8E4M3,
              F8E5M2 => crate::F8E5M2, F16 => half::f16, BF16 => half::bf16, F32 => f32, F64 => f64)
    }

    /// Computes the only element as f64, whatever the dtype.
    #[track_caller]
    pub fn item(&self) -> Result<f64> {
        let s = self.shape()?;
        if s.numel() != 1 {
            return Err(Error::shape("item", &[s], "expected exactly one element"));
        }
        if cfg!(debug_assertions) {
            read::note(self, Location::caller());
        }
        Ok(self.to_f64_vec()?[0])
    }

    /// The value copied to another device. Has no derivative.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Tensor {
        if self.device().is_some_and(|d| d.same(device)) {
            return self.clone();
        }
        Tensor::make(|| {
            let bytes = self.to_bytes()?;
            let m = self.meta();
            Ok(Tensor::from_bytes(&bytes, &m.shape, m.dtype, device))
        })
    }
}
