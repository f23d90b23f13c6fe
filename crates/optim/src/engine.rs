//! The transaction of a step, shared by all optimizers.
use crate::group::{Settings, decay, described, settings};
use crate::handle::Numbers;
use crate::schedule::rate;
use crate::{Averages, Ema, Notice, ParamGroup, Schedule, StepHandle, Watch};
use bimetal_layers::Ctx;
use bimetal_precision::{Checks, Grads, Unscaled};
use bimetal_tensor::graph::{Attr, Composite, IdMap, OptimRule};
use bimetal_tensor::{DType, Device, Error, Result, Slot, Tensor, commit};
use std::collections::HashSet;
use std::sync::Arc;

/// Settings and state of an optimizer.
pub(crate) struct Engine {
    pub rule: OptimRule,
    pub moments: &'static [&'static str],
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub matrices_only: bool,
    pub stochastic_rounding: bool,
    pub groups: Vec<ParamGroup>,
    pub ema: Option<Ema>,
    averages: Option<Averages>,
    schedule: Box<dyn Schedule>,
    /// The rate, if the host may change it.
    lr: Option<Slot>,
    managed: Vec<Managed>,
    by_slot: IdMap<u64, usize>,
    bundles: Vec<Settings>,
    pub attempted: u64,
    told: HashSet<u64>,
    groups_told: bool,
}

/// A parameter with its moments.
struct Managed {
    bundle: usize,
    moments: Vec<Slot>,
}

impl Engine {
    pub fn new(
        schedule: impl Schedule + 'static,
        rule: OptimRule,
        moments: &'static [&'static str],
    ) -> Engine {
        Engine {
            rule,
            moments,
            beta1: 0.0,
            beta2: 0.0,
            eps: 0.0,
            weight_decay: 0.0,
            matrices_only: false,
            stochastic_rounding: false,
            groups: Vec::new(),
            ema: None,
            averages: None,
            schedule: Box::new(schedule),
            lr: None,
            managed: Vec::new(),
            by_slot: IdMap::default(),
            bundles: Vec::new(),
            attempted: 0,
            told: HashSet::new(),
            groups_told: false,
        }
    }

    fn check(&self) -> Result<()> {
        self.schedule.check()?;
        decay("the weight decay", self.weight_decay)?;
        for g in &self.groups {
            g.check()?;
        }
        let share = |what: &str, v: f64| {
            if (0.0..1.0).contains(&v) {
                return Ok(());
            }
            Err(Error::setting(
                "optimizer",
                format!("{what} is {v}; expected a number from 0 to below 1"),
            ))
        };
        match self.rule {
            OptimRule::Adam { .. } => {
                share("beta1", self.beta1)?;
                share("beta2", self.beta2)?;
                if !(self.eps >= 0.0 && self.eps.is_finite()) {
                    return Err(Error::setting(
                        "optimizer",
                        format!(
                            "eps is {}; expected a finite number that is not negative, such as 1e-8",
                            self.eps
                        ),
                    ));
                }
                Ok(())
            }
            OptimRule::Sgd { nesterov, .. } => {
                share("the momentum", self.beta1)?;
                if !(0.0..=1.0).contains(&self.beta2) {
                    return Err(Error::setting(
                        "optimizer",
                        format!("the dampening is {}; expected 0 to 1", self.beta2),
                    ));
                }
                if nesterov && (self.beta1 == 0.0 || self.beta2 != 0.0) {
                    return Err(Error::setting(
                        "optimizer",
                        "Nesterov's form needs a momentum and no dampening",
                    ));
                }
                Ok(())
            }
        }
    }

    /// Makes the state of parameters that have none yet. Settings that cannot work are an error before anything is made.
    pub fn init(&mut self, params: &[Slot]) -> Result<()> {
        if params.iter().all(|p| self.by_slot.contains_key(&p.id())) && !self.managed.is_empty() {
            return Ok(());
        }
        self.check()?;
        let Some(first) = params.first() else {
            return Err(Error::setting(
                "optimizer",
                "there are no parameters to train; are all of them frozen?",
            ));
        };
        if let (None, Some(lr)) = (&self.lr, self.schedule.constant()) {
            self.lr = Some(Slot::new(
                "optim/lr",
                &number(lr, first.device()),
                first.device(),
            )?);
        }
        if let (None, Some(ema)) = (&self.averages, self.ema) {
            self.averages = Some(Averages::new(ema, first.device())?);
        }
        for p in params {
            if !self.by_slot.contains_key(&p.id()) {
                self.manage(p)?;
            }
        }
        Ok(())
    }

    fn manage(&mut self, p: &Slot) -> Result<()> {
        if !p.dtype().is_float() {
            return Err(Error::dtype(
                "optimizer",
                &[p.dtype()],
                format!("`{}` cannot be trained: expected floats", p.name()),
            ));
        }
        let set = settings(p, self.weight_decay, self.matrices_only, &self.groups);
        let bundle = match self.bundles.iter().position(|b| *b == set) {
            Some(i) => i,
            None => {
                self.bundles.push(set);
                self.bundles.len() - 1
            }
        };
        let d = master(p.dtype());
        let mut moments = Vec::with_capacity(self.moments.len());
        for m in self.moments {
            let zeros = Tensor::zeros(&p.shape(), d, p.device());
            moments.push(Slot::new(
                format!("optim/{}/{m}", p.name()),
                &zeros,
                p.device(),
            )?);
        }
        if let Some(averages) = &mut self.averages {
            averages.add(p)?;
        }
        self.by_slot.insert(p.id(), self.managed.len());
        self.managed.push(Managed { bundle, moments });
        Ok(())
    }

    /// What a checkpoint saves: the learning rate if the host may change it, then the moments in the order of the parameters, then the averages.
    pub fn state(&self) -> Vec<Slot> {
        let moments = self.managed.iter().flat_map(|m| m.moments.iter());
        let averages = self.averages.iter().flat_map(Averages::state);
        let all = self.lr.iter().chain(moments).chain(averages);
        all.cloned().collect()
    }

    /// Keeps averages from the first step on.
    pub fn set_ema(&mut self, ema: Ema) -> Result<()> {
        if self.ema != Some(ema) && !self.managed.is_empty() {
            return Err(Error::setting(
                "ema",
                "the optimizer has been used already; make it with `.ema(..)`",
            ));
        }
        self.ema = Some(ema);
        Ok(())
    }

    pub fn averages(&self) -> Result<&Averages> {
        self.averages.as_ref().ok_or_else(|| {
            let detail = match self.ema {
                Some(_) => "there are no averages before training has begun",
                None => "the optimizer keeps no averages; make it with `.ema(0.999)`",
            };
            Error::setting("ema", detail)
        })
    }

    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        rate("the learning rate", lr)?;
        if self.schedule.constant().is_none() {
            return Err(Error::setting(
                "set_lr",
                "the learning rate follows a schedule; make the optimizer with a number to set it by hand",
            ));
        }
        match &self.lr {
            Some(slot) => slot.set(&number(lr, slot.device())),
            None => {
                self.schedule = Box::new(lr);
                Ok(())
            }
        }
    }

    /// One transaction: weights, moments, pending updates and the counter of applied steps if all is finite, and the loss scale.
    pub fn step(
        &mut self,
        cx: Ctx,
        grads: &Grads<Unscaled>,
        also: &[&Tensor],
        watch: &mut Watch<'_>,
    ) -> Result<StepHandle> {
        let params: Arc<[Slot]> = grads.slots().cloned().collect();
        self.init(&params)?;
        if !cx.training() {
            return Err(Error::setting(
                "step",
                "the context is that of an evaluation pass; take one from `ParamStore::train`",
            ));
        }
        if !self.groups_told {
            described(&self.groups, &params, cx.store())?;
        }
        let counter = cx.store().applied()?.clone();
        let applied = counter.read();
        let lr = self.rate(&applied.cast(DType::F32));
        let mut apply = grads
            .finite()
            .logical_and(lr.is_finite())
            .logical_and(lr.ge(0.0));
        let halted = grads.halt().map(|h| h.slot().read());
        if let Some(halted) = &halted {
            apply = apply.logical_and(halted.logical_not());
        }
        let mut writes = self.update(&cx, grads, &apply, &lr, &(&applied + 1).cast(DType::F32))?;
        if let Some(averages) = &self.averages {
            writes.extend(averages.update(&apply, &writes)?);
        }
        for (history, amax) in grads.amax() {
            cx.record_amax(history, amax);
        }
        for (slot, new) in cx.into_updates() {
            let new = apply.select(new, slot.read());
            writes.push((slot, new));
        }
        for (slot, new) in grads.scaler().update(grads.finite()) {
            let new = match &halted {
                Some(halted) => halted.select(slot.read(), new),
                None => new,
            };
            writes.push((slot, new));
        }
        if let (Some(halt), Some(halted)) = (grads.halt(), &halted) {
            let bad = grads.finite().logical_not();
            writes.push((halt.slot().clone(), halted.logical_or(bad)));
        }
        writes.push((counter.clone(), &applied + apply.cast(DType::U32)));
        let first_checked = grads.checks().and_then(Checks::first_bad);
        let stats = Numbers {
            loss: grads.loss(),
            finite: grads.finite(),
            scale: grads.scale(),
            norm: &grads.norm_before_clipping(),
            lr: &lr,
            first_bad: grads.first_bad(),
            first_checked,
            halted: halted.as_ref(),
        }
        .pack();
        let pairs: Vec<(&Slot, &Tensor)> = writes.iter().map(|(s, t)| (s, t)).collect();
        let watched = watch(&writes);
        // The checks come first, so that each is computed as soon as what it looks at is there.
        let outputs: Vec<&Tensor> = first_checked
            .into_iter()
            .chain([&stats])
            .chain(also.iter().copied())
            .chain(&watched)
            .collect();
        commit(&outputs, &pairs)?;
        self.attempted += 1;
        let notices = self.notices(grads);
        Ok(StepHandle::new(
            stats.settle()?,
            params,
            self.attempted,
            notices,
            grads.checks(),
        ))
    }

    fn rate(&self, applied: &Tensor) -> Tensor {
        let lr = match &self.lr {
            Some(slot) => slot.read(),
            None => self.schedule.lr(applied).cast(DType::F32),
        };
        match lr.device() {
            Some(_) => lr,
            // A schedule may return a bare number.
            None => applied * 0.0 + lr,
        }
    }

    /// The new weights and moments, one operation for all parameters of equal settings.
    fn update(
        &self,
        cx: &Ctx,
        grads: &Grads<Unscaled>,
        apply: &Tensor,
        lr: &Tensor,
        step: &Tensor,
    ) -> Result<Vec<(Slot, Tensor)>> {
        let mut writes = Vec::new();
        let factor = grads.factor();
        for (bundle, set) in self.bundles.iter().enumerate() {
            let lr = match set.lr_factor {
                1.0 => lr.clone(),
                f => lr * f,
            };
            let mut inputs = vec![apply.clone(), lr, factor.clone(), step.clone()];
            let mut slots = Vec::new();
            for (slot, grad) in grads.raw() {
                let Some(m) = self.by_slot.get(&slot.id()).map(|&i| &self.managed[i]) else {
                    continue;
                };
                if m.bundle != bundle {
                    continue;
                }
                let d = master(slot.dtype());
                inputs.push(slot.read().cast(d));
                inputs.push(grad.cast(d));
                inputs.extend(m.moments.iter().map(Slot::read));
                slots.push(slot);
                slots.extend(&m.moments);
            }
            if slots.is_empty() {
                continue;
            }
            let composite = Composite::OptimUpdate {
                rule: self.rule,
                beta1: Attr(self.beta1),
                beta2: Attr(self.beta2),
                eps: Attr(self.eps),
                weight_decay: Attr(set.weight_decay),
            };
            let new = Tensor::composite(composite, &inputs.iter().collect::<Vec<_>>());
            new.check()?;
            for (i, slot) in slots.into_iter().enumerate() {
                let value = self.rounded(cx, &new.output(i), slot);
                writes.push((slot.clone(), value));
            }
        }
        Ok(writes)
    }

    /// A new value in the dtype it is kept in.
    fn rounded(&self, cx: &Ctx, value: &Tensor, slot: &Slot) -> Tensor {
        if !(self.stochastic_rounding && slot.dtype().is_half()) {
            return value.cast(slot.dtype());
        }
        // No layer has a parameter's path, so no layer has its stream.
        let _path = cx.at(&slot.name().into());
        value.cast_stochastic(slot.dtype(), cx.random_key(), Some(&cx.step()))
    }

    fn notices(&mut self, grads: &Grads<Unscaled>) -> Vec<Notice> {
        let mut notices = Vec::new();
        for slot in grads.missing() {
            if self.told.insert(slot.id()) {
                notices.push(Notice::NoGradient {
                    parameter: slot.name().to_string(),
                });
            }
        }
        if !std::mem::replace(&mut self.groups_told, true) {
            for g in &self.groups {
                if !grads.slots().chain(grads.missing()).any(|s| g.matches(s)) {
                    notices.push(Notice::UnusedGroup {
                        pattern: g.pattern().to_string(),
                    });
                }
            }
        }
        notices
    }
}

/// The dtype moments are kept and weights are updated in.
pub(crate) fn master(d: DType) -> DType {
    match d {
        DType::F64 => d,
        _ => DType::F32,
    }
}

fn number(v: f64, device: &Device) -> Tensor {
    Tensor::full(&[], v, DType::F32, device)
}
