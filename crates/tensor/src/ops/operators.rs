//! `+ - * /` and unary minus between tensors, references and numbers. Numbers are `f64` or `i32`: with one float and one integer type,
//! literals need no suffix.
use crate::Tensor;
use crate::graph::{Binary, Unary};
use std::ops::{Add, Div, Mul, Neg, Sub};

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl From<$t> for Tensor {
            #[track_caller]
            fn from(v: $t) -> Tensor {
                Tensor::scalar(v as f64)
            }
        }
    )*};
}
numbers!(f64, f32, i32, u32);

impl From<&Tensor> for Tensor {
    fn from(t: &Tensor) -> Tensor {
        t.clone()
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $op:ident, $($number:ty),*) => {
        operator!(@pair $trait, $method, $op, Tensor, Tensor);
        operator!(@pair $trait, $method, $op, Tensor, &Tensor);
        operator!(@pair $trait, $method, $op, &Tensor, Tensor);
        operator!(@pair $trait, $method, $op, &Tensor, &Tensor);
        $(
            operator!(@pair $trait, $method, $op, Tensor, $number);
            operator!(@pair $trait, $method, $op, &Tensor, $number);
            operator!(@pair $trait, $method, $op, $number, Tensor);
            operator!(@pair $trait, $method, $op, $number, &Tensor);
        )*
    };
    (@pair $trait:ident, $method:ident, $op:ident, $a:ty, $b:ty) => {
        impl $trait<$b> for $a {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: $b) -> Tensor {
                Tensor::binary(&Tensor::from(self), Binary::$op, &Tensor::from(rhs))
            }
        }
    };
}
operator!(Add, add, Add, f64, i32);
operator!(Sub, sub, Sub, f64, i32);
operator!(Mul, mul, Mul, f64, i32);
operator!(Div, div, Div, f64, i32);

impl Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        self.unary(Unary::Neg)
    }
}

impl Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        self.unary(Unary::Neg)
    }
}
