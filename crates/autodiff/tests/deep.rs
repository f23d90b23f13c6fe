//! Depth costs no stack.
mod common;
use bimetal_autodiff::{checkpoint, grad, grad_optional};
use common::*;

/// A chain of 1,000,000 nodes, its gradient and its end on a stack of 2 MiB.
#[test]
fn a_chain_of_a_million_nodes() {
    let run = || {
        let x = f32s(&[1.0, 2.0], &[2]);
        let mut y = x.clone();
        for i in 0..1_000_000 {
            y = if i % 2 == 0 { y.neg() } else { y.tanh() };
        }
        let loss = y.sum_all();
        let g = grad(&loss, &[&x]).unwrap();
        assert_eq!(g[0].dims::<1>().unwrap(), [2]);
        let other = f32s(&[1.0], &[1]);
        assert!(grad_optional(&loss, &[&other]).unwrap()[0].is_none());
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run);
    thread.unwrap().join().unwrap();
}

#[test]
fn long_segments_and_many_segments() {
    let run = || {
        let x = f32s(&[1.0, 2.0], &[2]);
        let long = checkpoint(|t| (0..50_000).fold(t[0].clone(), |y, _| y.sin()), &[&x]);
        let y = (0..5_000).fold(long, |y, _| checkpoint(|t| t[0].sin(), &[&y]));
        let g = grad(&y.sum_all(), &[&x]).unwrap();
        assert_eq!(g[0].dims::<1>().unwrap(), [2]);
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run);
    thread.unwrap().join().unwrap();
}
