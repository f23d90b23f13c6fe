//! Random graphs, for what must hold of fusion.
use crate::random::Gen;
use bimetal_tensor::graph::RandomKey;
use bimetal_tensor::{DType, Device, Tensor};

/// A random graph of element-wise operations, reductions and products over f32 and half tensors, several results.
pub fn random_graph(g: &mut Gen, device: &Device) -> Vec<Tensor> {
    let (m, n) = (1 + g.below(40), 1 + g.below(60));
    let dtypes = [DType::F32, DType::F16, DType::BF16, DType::F32];
    let mut pool: Vec<Tensor> = Vec::new();
    for shape in [vec![m, n], vec![n], vec![m, 1], vec![m, n]] {
        let count = shape.iter().product();
        let v: Vec<f32> = g
            .values(count, -2.0, 2.0)
            .iter()
            .map(|&v| v as f32)
            .collect();
        pool.push(Tensor::from_slice(&v, &shape, device).cast(*g.pick(&dtypes)));
    }
    for _ in 0..4 + g.below(30) {
        let a = g.pick(&pool).clone();
        let b = g.pick(&pool).clone();
        let full = a.shape().is_ok_and(|s| s[..] == [m, n]);
        pool.push(match g.below(14) {
            0 => a + b,
            1 => a * b,
            2 => a - b * 0.37,
            3 => a.tanh(),
            4 => a.gelu(),
            5 => a.relu(),
            6 => a.cast(*g.pick(&dtypes)),
            7 => a.sigmoid().maximum(&b),
            8 => a.gt(&b).select(&a, &b),
            9 if full => a.sum(&[1], true) * 0.01,
            10 if full => a.mean(&[0], false),
            11 if full => a.softmax(-1),
            13 => {
                let stream = g.below(1 << 30) as u64;
                let key = RandomKey::Value { stream, micro: 0 };
                a.cast(DType::F32).cast_stochastic(DType::BF16, key, None)
            }
            12 if full && g.chance(0.5) => {
                let w = pool[3].clone();
                let p = a.matmul(&w.t()).tanh();
                p.matmul(&w.cast(p.dtype())) * 0.1
            }
            _ => a.abs() + 0.5,
        });
    }
    let count = 1 + g.below(4);
    (0..count)
        .map(|i| pool[pool.len() - 1 - (i * 3) % pool.len()].clone())
        .collect()
}
