//! The training loop.

mod advice;
mod ema;
mod evaluate;
mod fit;
mod report;
mod run;
mod settings;
mod slots;
mod start;
mod state;
mod step;
mod task;
mod totals;
mod watched;

use std::collections::BTreeMap;
use std::path::PathBuf;

use bimetal_layers::ParamStore;
use bimetal_optim::Optimizer;
use bimetal_precision::{Level, LossScale, LossScaler};

use crate::{Callback, Callbacks, Result};

use settings::Settings;
use state::Snapshot;

pub use report::Report;
pub use slots::{load_slots, load_weights, slot_arrays};
pub use task::{Output, Task, TensorBatch};
pub(crate) use watched::{mean_loss, run_slots, set_slots};

/// Trains a model: steps, validation, callbacks, checkpoints, resuming.
///
/// The names are Keras'. A step is one update of the optimizer; `accumulate` batches make one. A model in which any
/// layer computes in f16 gets dynamic loss scaling without asking. Results do not depend on `steps_per_execution`, on
/// prefetching, on the number of threads, or on whether the run was interrupted and resumed: bit for bit.
///
/// ```no_run
/// use bimetal_data::Loader;
/// use bimetal_layers::{Ctx, Layer, Linear, ParamStore, cross_entropy};
/// use bimetal_optim::AdamW;
/// use bimetal_train::{EarlyStopping, Output, TensorBatch, Trainer};
///
/// # fn f(store: ParamStore, net: Linear, train: Loader, valid: Loader, test: Loader) -> bimetal_train::Result<()> {
/// let task = |batch: &TensorBatch, cx: &Ctx| {
///     let logits = net.forward(&batch[0], cx);
///     Output::new(cross_entropy(&logits, &batch[1])).accuracy(&logits, &batch[1])
/// };
/// let mut trainer = Trainer::new(&store, AdamW::new(3e-4))
///     .steps_per_execution(50)
///     .checkpoint("runs/a")
///     .callback(EarlyStopping::new("val_loss").patience(3));
/// let report = trainer.fit(&task, train, Some(valid), 10)?;
/// println!("{report}");
/// let test = trainer.evaluate(&task, test)?;
/// # Ok(()) }
/// ```
pub struct Trainer {
    store: ParamStore,
    optimizer: Box<dyn Optimizer>,
    settings: Settings,
    callbacks: Callbacks,
    scaler: Option<LossScaler>,
    /// Weights that callbacks have kept, by callback number.
    kept: BTreeMap<usize, Snapshot>,
    /// Attempted steps of earlier calls.
    attempted: u64,
}

impl Trainer {
    /// A trainer of all trainable parameters of `store`.
    pub fn new(store: &ParamStore, optimizer: impl Optimizer + 'static) -> Self {
        Self {
            store: store.clone(),
            optimizer: Box::new(optimizer),
            settings: Settings::default(),
            callbacks: Callbacks::new(),
            scaler: None,
            kept: BTreeMap::new(),
            attempted: 0,
        }
    }

    /// How the loss is scaled; default dynamic if any layer computes in f16, else not at all.
    pub fn loss_scale(mut self, scale: LossScale) -> Self {
        self.settings.loss_scale = Some(scale);
        self
    }

    /// Steps from one reading of losses and outcomes to the next; default 1. Callbacks, progress and checkpoints
    /// come at these points, and at the end of an epoch.
    pub fn steps_per_execution(mut self, steps: usize) -> Self {
        self.settings.steps_per_execution = steps;
        self
    }

    /// Steps of an epoch, the data going round as it may; default one pass over the data, and for
    /// [`Trainer::fit_steps`] all steps. Validation comes at the end of an epoch.
    pub fn steps_per_epoch(mut self, steps: u64) -> Self {
        self.settings.steps_per_epoch = Some(steps);
        self
    }

    /// Batches whose gradients are averaged for one step; default 1. A non-finite one drops the whole step.
    pub fn accumulate(mut self, batches: usize) -> Self {
        self.settings.accumulate = batches;
        self
    }

    /// Limits the global norm of the unscaled gradients; default no limit.
    pub fn clip_norm(mut self, max_norm: f32) -> Self {
        // The shortest decimal: 0.1f32 means 0.1, as it does where the number is an f64.
        self.settings.clip_norm = Some(max_norm.to_string().parse().unwrap_or(f64::from(max_norm)));
        self
    }

    /// Adds a callback; they are called in this order.
    pub fn callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.push(callback);
        self
    }

    /// Writes checkpoints of everything that a resume needs to `dir`: after each epoch, or every
    /// [`save_every`](Trainer::save_every) steps, and at the end.
    pub fn checkpoint(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.checkpoint = Some(dir.into());
        self
    }

    /// Steps from one checkpoint to the next, at the end of the execution that reaches them.
    pub fn save_every(mut self, steps: u64) -> Self {
        self.settings.save_every = Some(steps);
        self
    }

    /// Checkpoints that stay, at least one; default 3.
    pub fn keep_checkpoints(mut self, checkpoints: usize) -> Self {
        self.settings.keep = checkpoints;
        self
    }

    /// Whether to go on from the newest checkpoint, or from the beginning where there is none; default false, and then
    /// checkpoints of another run in the folder are an error.
    pub fn resume(mut self, resume: bool) -> Self {
        self.settings.resume = resume;
        self
    }

    /// Whether to show a progress line and warnings on standard error; default true.
    pub fn progress(mut self, show: bool) -> Self {
        self.settings.progress = show;
        self
    }

    /// Skipped steps in a row that are an error, which names the layers that were to blame most often and says what may help;
    /// default 100, 0 for no limit.
    pub fn max_skipped_in_a_row(mut self, steps: u32) -> Self {
        self.settings.max_skipped = steps;
        self
    }

    /// How closely to look for what made a step one that is skipped; default [`Level::Off`].
    ///
    /// From [`Level::Step`] on, a skipped step stops the rest of its execution on the device, is computed again from the untouched state and the
    /// same batches with every operation checked, and the rest then runs: same results, bit for bit. A warning names operation, layer path,
    /// source line, counts and the ranges of the operands; callbacks get the same in [`Callback::on_skipped`]. If the loss itself was not
    /// finite it is an error instead. The batches of an execution stay in the device's memory until it is read.
    pub fn check_numerics(mut self, level: Level) -> Self {
        self.settings.check_numerics = level;
        self
    }

    /// The parameters.
    pub fn store(&self) -> &ParamStore {
        &self.store
    }

    /// The optimizer, for instance to set its learning rate.
    pub fn optimizer(&mut self) -> &mut dyn Optimizer {
        self.optimizer.as_mut()
    }

    /// Makes the states of optimizer and loss scale, which refuse settings that cannot work.
    pub(crate) fn prepare(&mut self) -> Result<LossScaler> {
        self.settings.check()?;
        self.store.check()?;
        if let Some(ema) = self.settings.ema {
            self.optimizer.set_ema(ema)?;
        }
        let params = self.store.trainable_slots()?;
        self.optimizer.init(&params)?;
        if let Some(scaler) = &self.scaler {
            return Ok(scaler.clone());
        }
        let default = match self.store.computes_in_f16() {
            true => LossScale::dynamic(),
            false => LossScale::None,
        };
        let settings = self.settings.loss_scale.unwrap_or(default);
        let scaler = LossScaler::new(settings, self.store.device())?;
        Ok(self.scaler.insert(scaler).clone())
    }
}
