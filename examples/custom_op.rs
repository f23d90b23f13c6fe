//! An operation of one's own, as a crate outside of bimetal would define it: the Snake activation `x + sin(a x)^2 / a` (Ziyin et al.
//! 2020), which lets a network learn what is periodic. Each feature has an `a` of its own, which is trained.
//!
//! The operation says what it means in terms of others (`decompose`), brings a kernel for the host (`forward`) and a derivative (`vjp`);
//! a program then checks the one against the other, and trains a small model in mixed precision.
//!
//! `cargo run --release --example custom_op`

use bimetal::layers::Site;
use bimetal::prelude::*;
use bimetal::tensor;
use bimetal::tensor::graph::{CustomOp, HostView, HostViewMut};
use bimetal::tensor::plan::Meta;
use std::sync::Arc;

/// Operands: x `[.., d]` and a `[d]`, of one float dtype; the result is as x. Computes in f32 or wider and rounds once.
struct Snake;

impl Snake {
    fn apply(x: &Tensor, a: &Tensor) -> Tensor {
        Tensor::custom(Arc::new(Snake), &[x, a])
    }

    /// Both operands in a dtype that formulas of several steps can be computed in.
    fn wide(inputs: &[Tensor]) -> (Tensor, Tensor) {
        let dtype = match inputs[0].dtype() {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        (inputs[0].cast(dtype), inputs[1].cast(dtype))
    }
}

impl CustomOp for Snake {
    // The name identifies the operation in the cache of plans: put the crate's name in front.
    fn name(&self) -> &'static str {
        "example.snake"
    }

    fn infer(&self, inputs: &[Meta]) -> tensor::Result<Vec<Meta>> {
        let [x, a] = inputs else {
            return Err(tensor::Error::argument(
                self.name(),
                "expected x and a as operands",
            ));
        };
        if a.shape.rank() != 1 || x.shape.last() != a.shape.last() {
            let detail = "expected x [.., d] and a [d]";
            return Err(tensor::Error::shape(
                self.name(),
                &[x.shape, a.shape],
                detail,
            ));
        }
        if !x.dtype.is_float() || a.dtype != x.dtype {
            let detail = "expected one float dtype; use `cast`";
            return Err(tensor::Error::dtype(
                self.name(),
                &[x.dtype, a.dtype],
                detail,
            ));
        }
        Ok(vec![*x])
    }

    /// The definition. Devices without the kernel run this.
    fn decompose(&self, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
        let (x, a) = Snake::wide(inputs);
        let y = &x + (&x * &a).sin().square() / &a;
        Some(vec![y.cast(inputs[0].dtype())])
    }

    fn has_host_kernel(&self) -> bool {
        true
    }

    /// On the host, in f64 for all dtypes: simple, and rounded once.
    fn forward(
        &self,
        inputs: &[HostView<'_>],
        outputs: &mut [HostViewMut<'_>],
    ) -> tensor::Result<()> {
        let (x, a) = (inputs[0].to_f64_vec()?, inputs[1].to_f64_vec()?);
        let d = a.len().max(1);
        let snake = |(i, x): (usize, &f64)| x + (x * a[i % d]).sin().powi(2) / a[i % d];
        let y: Vec<f64> = x.iter().enumerate().map(snake).collect();
        outputs[0].write(&y)
    }

    /// `dy/dx = 1 + sin(2 a x)` and `dy/da = (x sin(2 a x) - sin(a x)^2 / a) / a`. It is more graph, so that it can be differentiated again.
    fn vjp(
        &self,
        inputs: &[Tensor],
        _outputs: &[Tensor],
        grads: &[Option<Tensor>],
    ) -> Option<Vec<Option<Tensor>>> {
        let g = grads[0].as_ref()?;
        let (x, a) = Snake::wide(inputs);
        let ax = &x * &a;
        let twice = (&ax * 2).sin();
        let for_a = (&x * &twice - ax.sin().square() / &a) / &a;
        // One `a` for all rows: its gradient is the sum over them.
        let for_a = Tensor::build(|| Ok((g * for_a).sum_to(&a.shape()?)));
        Some(vec![Some(g * (twice + 1)), Some(for_a)])
    }
}

/// The layer around it: `[.., width]` to the same, with the parameter `a` `[width]`.
struct SnakeLayer {
    site: Site,
    a: Param,
}

impl SnakeLayer {
    #[track_caller]
    fn new(scope: &Scope, width: usize) -> SnakeLayer {
        SnakeLayer {
            site: scope.site(),
            a: scope.param(
                "a",
                &[width],
                Init::Uniform {
                    low: 1.0,
                    high: 10.0,
                },
            ),
        }
    }
}

impl Layer for SnakeLayer {
    #[track_caller]
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self.site.run(cx, || {
            let y = Snake::apply(&self.site.input(x), &self.a.compute());
            Ok(self.site.output(&y))
        })
    }
}

/// The largest difference between the kernel and the definition.
fn kernel_error(x: &Tensor, a: &Tensor) -> Result<f64> {
    let kernel = Snake::apply(x, a);
    let inputs = [x.clone(), a.clone()];
    let meaning = Snake.decompose(&inputs).unwrap_or_default().remove(0);
    Ok((kernel - meaning).abs().max(&[], false).item()?)
}

/// The largest difference between the gradients and central differences, in f64.
fn gradient_error(x: &[f64], a: &[f64], device: &Device) -> Result<f64> {
    let width = a.len();
    let tensor = |v: &[f64], shape: &[usize]| Tensor::from_slice(v, shape, device);
    let build = |x: &[f64], a: &[f64]| {
        let (x, a) = (tensor(x, &[x.len() / width, width]), tensor(a, &[width]));
        let loss = Snake::apply(&x, &a).square().mean_all();
        (loss, x, a)
    };
    let (loss, xt, at) = build(x, a);
    let grads = grad(&loss, &[&xt, &at])?;
    let step = 1e-5;
    let mut worst = 0f64;
    for (which, grad) in grads.iter().enumerate() {
        for (i, found) in grad.to_vec::<f64>()?.into_iter().enumerate() {
            let moved = |by: f64| {
                let (mut x, mut a) = (x.to_vec(), a.to_vec());
                [&mut x, &mut a][which][i] += by;
                build(&x, &a).0.item()
            };
            let expected = (moved(step)? - moved(-step)?) / (2.0 * step);
            worst = worst.max((found - expected).abs());
        }
    }
    Ok(worst)
}

/// Fits `sin(12 x)` and returns the final loss.
fn train(activation: impl Fn(&Scope) -> Box<dyn Layer>, device: &Device) -> Result<f64> {
    let x = Array::from_vec(
        (0..256).map(|i| i as f32 / 128.0 - 1.0).collect(),
        &[256, 1],
    )?;
    let y = x.map_f32(|x| (12.0 * x).sin())?;
    let data = Loader::new(InMemory::new(vec![x, y])?).batch(32).shuffle(0);

    let store = ParamStore::new(device, "mixed_float16").seed(0);
    let scope = store.root();
    let first = Linear::new(&scope.at("first"), 1, 32);
    let act = activation(&scope.at("act"));
    let head = Linear::new(&scope.at("head").policy("float32"), 32, 1);
    let task = |batch: &TensorBatch, cx: &Ctx| {
        let h = act.forward(&first.forward(&batch[0], cx), cx);
        Output::new(mse(&head.forward(&h, cx), &batch[1]))
    };
    let mut trainer = Trainer::new(&store, Adam::new(0.02))
        .steps_per_execution(8)
        .progress(false);
    Ok(trainer.fit(&task, data, None, 60)?.train_loss())
}

fn main() -> Result<()> {
    let device = bimetal::cpu();
    let x: Vec<f64> = (0..24).map(|i| (i * 7 % 24) as f64 / 6.0 - 2.0).collect();
    let a = [0.5, 1.0, 3.0];

    println!("{:<46}{:>10}", "check", "largest");
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        let (x, a) = (
            Tensor::from_slice(&x, &[8, 3], &device).cast(dtype),
            Tensor::from_slice(&a, &[3], &device).cast(dtype),
        );
        let error = kernel_error(&x, &a)?;
        println!(
            "{:<46}{error:>10.1e}",
            format!("kernel and definition in {dtype}")
        );
        // Both round once, so they differ by one step of the dtype at most; values are below 4.
        if error > 4.0 * dtype.epsilon() {
            return Err(Error::invalid(format!("the kernel is wrong in {dtype}")));
        }
    }
    let error = gradient_error(&x, &a, &device)?;
    println!(
        "{:<46}{error:>10.1e}",
        "gradient and differences in float64"
    );
    if error > 1e-8 {
        return Err(Error::invalid("the derivative is wrong"));
    }

    let snake = train(|scope| Box::new(SnakeLayer::new(scope, 32)), &device)?;
    let relu = train(|_| Box::new(Activation::Relu), &device)?;
    println!("{:<46}{snake:>10.4}", "loss on sin(12 x) with Snake");
    println!("{:<46}{relu:>10.4}", "loss on sin(12 x) with ReLU");
    Ok(())
}
