//! Convolutions and their gradients on the device beside plain loops, on small whole numbers as in `products`.
use crate::products::numbers;
use bimetal_tensor::graph::Conv2d;
use bimetal_tensor::{DType, Device, Tensor};

/// Images, channels, outputs, height and width, and the kernel's; the stride and the padding.
struct Case {
    n: usize,
    c: usize,
    o: usize,
    size: [usize; 2],
    kernel: [usize; 2],
    stride: usize,
    pad: usize,
}

const CASES: [Case; 2] = [
    Case {
        n: 2,
        c: 9,
        o: 16,
        size: [10, 9],
        kernel: [3, 3],
        stride: 1,
        pad: 1,
    },
    Case {
        n: 3,
        c: 8,
        o: 10,
        size: [11, 12],
        kernel: [3, 2],
        stride: 2,
        pad: 0,
    },
];

impl Case {
    fn out(&self, axis: usize) -> usize {
        (self.size[axis] + 2 * self.pad - self.kernel[axis]) / self.stride + 1
    }

    /// Calls `f` with the places in the input, the weight and the result of every product.
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let ([h, w], [kh, kw], [oh, ow]) = (self.size, self.kernel, [self.out(0), self.out(1)]);
        for n in 0..self.n {
            for o in 0..self.o {
                for y in 0..oh {
                    for x in 0..ow {
                        for c in 0..self.c {
                            for t in 0..kh * kw {
                                let (iy, ix) = (y * self.stride + t / kw, x * self.stride + t % kw);
                                if iy < self.pad
                                    || ix < self.pad
                                    || iy - self.pad >= h
                                    || ix - self.pad >= w
                                {
                                    continue;
                                }
                                let input =
                                    ((n * self.c + c) * h + iy - self.pad) * w + ix - self.pad;
                                let weight = (o * self.c + c) * kh * kw + t;
                                f(input, weight, ((n * self.o + o) * oh + y) * ow + x);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What differs, by name.
pub fn run(device: &Device) -> Result<usize, String> {
    let text = |e: bimetal_tensor::Error| e.to_string();
    let mut wrong = 0;
    for (case, dtype) in CASES
        .iter()
        .flat_map(|c| [(c, DType::F16), (c, DType::BF16)])
    {
        let shapes = [
            [case.n, case.c, case.size[0], case.size[1]],
            [case.o, case.c, case.kernel[0], case.kernel[1]],
            [case.n, case.o, case.out(0), case.out(1)],
        ];
        let count = |i: usize| shapes[i].iter().product::<usize>();
        // Signs only, so that sums stay whole in every dtype.
        let values = |i: usize| -> Vec<f32> {
            numbers(i as u32 + 5, count(i))
                .iter()
                .map(|v| v.signum())
                .collect()
        };
        let all = [values(0), values(1), values(2)];
        let make = |i: usize| {
            let x = Tensor::from_slice(&all[i], &shapes[i], device).cast(dtype);
            x.eval().map(|()| x).map_err(text)
        };
        let (x, w, g) = (make(0)?, make(1)?, make(2)?);
        let pad = case.pad as u32;
        let conv = Conv2d {
            stride: [case.stride as u32; 2],
            padding: [pad; 4],
            dilation: [1, 1],
            groups: 1,
        };
        let mut sums = [
            vec![0f32; count(0)],
            vec![0f32; count(1)],
            vec![0f32; count(2)],
        ];
        case.each(|i, k, r| {
            sums[0][i] += all[1][k] * all[2][r];
            sums[1][k] += all[0][i] * all[2][r];
            sums[2][r] += all[0][i] * all[1][k];
        });
        let found = [
            Tensor::conv2d_grad_input(&w, &g, conv, &shapes[0]),
            Tensor::conv2d_grad_weight(&x, &g, conv, &shapes[1]),
            x.conv2d(&w, conv),
        ];
        for ((name, found), want) in ["gradient of input", "gradient of weight", "forward"]
            .iter()
            .zip(&found)
            .zip(&sums)
        {
            let found = found.cast(DType::F32).to_vec::<f32>().map_err(text)?;
            let bad = found.iter().zip(want).filter(|(f, w)| f != w).count();
            let verdict = if bad == 0 {
                "equal".into()
            } else {
                format!("{bad} of {} differ", want.len())
            };
            println!(
                "{:70} {verdict}",
                format!(
                    "convolution {dtype:?} {:?} {:?}, {name}",
                    shapes[0], shapes[1]
                )
            );
            wrong += usize::from(bad > 0);
        }
    }
    Ok(wrong)
}
