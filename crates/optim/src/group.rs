//! Parameter groups: other settings for some parameters, by path.
use bimetal_layers::ParamStore;
use bimetal_precision::{near_paths, path_matches};
use bimetal_tensor::{Error, Result, Slot};

/// Settings for the parameters whose path a pattern describes (`*`: any run of characters, `?`: one; a pattern also describes what lies inside of the
/// layer it names). Where several groups describe a parameter, later ones win.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamGroup {
    pattern: String,
    lr_factor: Option<f64>,
    weight_decay: Option<f64>,
}

impl ParamGroup {
    /// A group without settings.
    pub fn new(pattern: impl Into<String>) -> ParamGroup {
        ParamGroup {
            pattern: pattern.into(),
            lr_factor: None,
            weight_decay: None,
        }
    }

    /// The learning rate of these parameters is that of the optimizer times `factor`.
    pub fn lr_factor(mut self, factor: f64) -> ParamGroup {
        self.lr_factor = Some(factor);
        self
    }

    /// The weight decay of these parameters.
    pub fn weight_decay(mut self, decay: f64) -> ParamGroup {
        self.weight_decay = Some(decay);
        self
    }

    /// The pattern.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    pub(crate) fn matches(&self, slot: &Slot) -> bool {
        path_matches(&self.pattern, slot.name())
    }

    pub(crate) fn check(&self) -> Result<()> {
        let p = &self.pattern;
        if let Some(f) = self.lr_factor
            && !(f >= 0.0 && f.is_finite())
        {
            return Err(Error::setting(
                "param_group",
                format!(
                    "the learning rate factor of `{p}` is {f}; expected a finite number that is not negative"
                ),
            ));
        }
        match self.weight_decay {
            Some(d) => decay(&format!("the weight decay of `{p}`"), d),
            None => Ok(()),
        }
    }
}

/// An error for a group that describes none of the parameters trained and none of the store's, frozen ones among them.
pub(crate) fn described(groups: &[ParamGroup], trained: &[Slot], store: &ParamStore) -> Result<()> {
    let idle = |g: &&ParamGroup| !trained.iter().any(|slot| g.matches(slot));
    for group in groups.iter().filter(idle) {
        let params = store.params();
        let paths = || params.iter().map(|p| p.path());
        let pattern = &group.pattern;
        if !paths().any(|path| path_matches(pattern, path)) {
            let all = paths().chain(trained.iter().map(Slot::name));
            return Err(Error::setting(
                "param_group",
                format!(
                    "the group `{pattern}` describes no parameter; the nearest are {}; correct the pattern or remove the group",
                    near_paths(pattern, all, 5).join(", ")
                ),
            ));
        }
    }
    Ok(())
}

pub(crate) fn decay(what: &str, d: f64) -> Result<()> {
    if d >= 0.0 && d.is_finite() {
        return Ok(());
    }
    Err(Error::setting(
        "weight_decay",
        format!("{what} is {d}; expected a finite number that is not negative, such as 0.1"),
    ))
}

/// What a parameter is updated with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub lr_factor: f64,
    pub weight_decay: f64,
}

impl PartialEq for Settings {
    fn eq(&self, o: &Settings) -> bool {
        self.lr_factor.to_bits() == o.lr_factor.to_bits()
            && self.weight_decay.to_bits() == o.weight_decay.to_bits()
    }
}

/// The settings of one parameter.
pub(crate) fn settings(
    slot: &Slot,
    weight_decay: f64,
    matrices_only: bool,
    groups: &[ParamGroup],
) -> Settings {
    let mut s = Settings {
        lr_factor: 1.0,
        weight_decay,
    };
    if matrices_only && slot.shape().rank() < 2 {
        s.weight_decay = 0.0;
    }
    for g in groups.iter().filter(|g| g.matches(slot)) {
        s.lr_factor = g.lr_factor.unwrap_or(s.lr_factor);
        s.weight_decay = g.weight_decay.unwrap_or(s.weight_decay);
    }
    s
}
