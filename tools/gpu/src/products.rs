//! Products on the device beside plain loops: operands are small whole numbers, so that every order of the sums gives the same bits.
use crate::options::Options;
use bimetal_tensor::graph::MatmulPrecision;
use bimetal_tensor::{DType, Device, Tensor};

/// A product: dtypes in which the operands are stored and multiplied, whether they are transposed, sizes `[batch, m, n, k]`.
struct Case {
    stored: [DType; 2],
    compute: [DType; 2],
    transposed: [bool; 2],
    sizes: [usize; 4],
}

fn cases() -> Vec<Case> {
    use DType::{BF16, F8E4M3, F8E5M2, F16, F32};
    let mut all = Vec::new();
    let mut add = |stored, compute, transposed, sizes| {
        all.push(Case {
            stored,
            compute,
            transposed,
            sizes,
        })
    };
    for d in [F16, BF16, F32] {
        add([d; 2], [d; 2], [false, false], [1, 128, 128, 96]);
        add([d; 2], [d; 2], [false, true], [2, 64, 72, 64]);
        add([d; 2], [d; 2], [true, false], [1, 33, 65, 40]);
        add([d; 2], [d; 2], [true, true], [3, 19, 21, 53]);
        add([d; 2], [d; 2], [false, false], [1, 16, 200, 64]);
        if d != F32 {
            add([d, F32], [d; 2], [false, false], [1, 48, 64, 64]);
        }
    }
    for pair in [
        [F8E4M3, F8E4M3],
        [F8E4M3, F8E5M2],
        [F8E5M2, F8E4M3],
        [F8E5M2, F8E5M2],
    ] {
        add(pair, pair, [false, true], [1, 64, 64, 128]);
    }
    add([F8E4M3; 2], [F8E4M3; 2], [false, false], [2, 37, 41, 70]);
    all
}

/// Whole numbers from -4 to 4.
pub fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as f32 % 9.0 - 4.0
    };
    (0..count).map(|_| next()).collect()
}

/// Seeds of the operands and of the bias.
const SEEDS: [u32; 3] = [7, 8, 3];

/// `relu(a b + bias) / 2` on the device.
fn found(c: &Case, device: &Device) -> Result<Vec<f32>, String> {
    let [batch, m, n, k] = c.sizes;
    let make = |i: usize, rows: usize, columns: usize| {
        let shape = match c.transposed[i] {
            true => [batch, columns, rows],
            false => [batch, rows, columns],
        };
        let values = numbers(SEEDS[i], batch * rows * columns);
        let x = Tensor::from_slice(&values, &shape, device).cast(c.stored[i]);
        // What is stored is a leaf of the product's plan.
        x.eval().map_err(|e| e.to_string())?;
        let x = x.cast(c.compute[i]);
        Ok::<_, String>(if c.transposed[i] {
            x.transpose(-1, -2)
        } else {
            x
        })
    };
    let (a, b) = (make(0, m, k)?, make(1, k, n)?);
    let bias = Tensor::from_slice(&numbers(SEEDS[2], n), &[n], device);
    let sum = a.matmul_with(&b, MatmulPrecision::Tf32, Some(DType::F32)) + bias;
    (sum.relu() * 0.5)
        .to_vec::<f32>()
        .map_err(|e| e.to_string())
}

/// The same by plain loops.
fn wanted(c: &Case) -> Vec<f32> {
    let [batch, m, n, k] = c.sizes;
    let (a, b) = (
        numbers(SEEDS[0], batch * m * k),
        numbers(SEEDS[1], batch * k * n),
    );
    let bias = numbers(SEEDS[2], n);
    let at = |i: usize, matrix: usize, row: usize, column: usize, rows: usize, columns: usize| {
        let inner = if c.transposed[i] {
            column * rows + row
        } else {
            row * columns + column
        };
        matrix * rows * columns + inner
    };
    let mut out = Vec::with_capacity(batch * m * n);
    for z in 0..batch {
        for row in 0..m {
            for column in 0..n {
                let products =
                    (0..k).map(|s| a[at(0, z, row, s, m, k)] * b[at(1, z, s, column, k, n)]);
                out.push((products.sum::<f32>() + bias[column]).max(0.0) * 0.5);
            }
        }
    }
    out
}

/// The `products` task.
pub fn run(mut options: Options) -> Result<(), String> {
    let only = options.value("--only")?;
    options.finish()?;
    let device = bimetal_cuda::cuda(0).map_err(|e| e.to_string())?;
    println!("{}", device.info().name);
    let mut wrong = 0;
    for c in cases() {
        let name = format!(
            "{:?} {:?} {:?} {:?}",
            c.stored, c.compute, c.transposed, c.sizes
        );
        if only.as_ref().is_some_and(|o| !name.contains(o.as_str())) {
            continue;
        }
        let (got, want) = (found(&c, &device)?, wanted(&c));
        let bad = got.iter().zip(&want).filter(|(g, w)| g != w).count();
        let verdict = if bad == 0 {
            "equal".into()
        } else {
            format!("{bad} of {} differ", want.len())
        };
        println!("{name:70} {verdict}");
        if let Some(i) = (0..want.len()).find(|i| got[*i] != want[*i]) {
            println!("    first at {i}: {} instead of {}", got[i], want[i]);
            wrong += 1;
        }
    }
    if only.is_none_or(|o| "convolution".contains(o.as_str())) {
        wrong += crate::convolutions::run(&device)?;
    }
    match wrong {
        0 => Ok(()),
        _ => Err(format!("{wrong} products are wrong")),
    }
}
