//! Whether two samples have the same mean: Welch's t-test.

/// Mean and sample standard deviation; the latter is 0 for fewer than two values.
pub(super) fn spread(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

/// The two-sided p-value of equal means (Welch 1947, degrees of freedom after Welch and Satterthwaite); `None` with fewer than two values on a side, or any that is
/// not finite.
pub(super) fn p_value(a: &[f64], b: &[f64]) -> Option<f64> {
    let finite = a.iter().chain(b).all(|v| v.is_finite());
    if a.len() < 2 || b.len() < 2 || !finite {
        return None;
    }
    let ((ma, sa), (mb, sb)) = (spread(a), spread(b));
    let (va, vb) = (sa * sa / a.len() as f64, sb * sb / b.len() as f64);
    if va + vb == 0.0 {
        return Some(if ma == mb { 1.0 } else { 0.0 });
    }
    let t = (ma - mb) / (va + vb).sqrt();
    let below = |v: f64, n: usize| v * v / (n as f64 - 1.0);
    let freedom = (va + vb) * (va + vb) / (below(va, a.len()) + below(vb, b.len()));
    Some(beta(freedom / (freedom + t * t), freedom / 2.0, 0.5))
}

/// The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8).
fn beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast on this side only.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta(1.0 - x, b, a);
    }
    let front = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln();
    // Evaluated from the back; 200 terms are far more than any argument here needs.
    let mut fraction = 1.0;
    for i in (1..=200).rev() {
        let m = f64::from(i / 2);
        let d = match i % 2 {
            0 => m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            _ => -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        };
        fraction = 1.0 + d / fraction;
    }
    front.exp() / (a * fraction)
}

/// The logarithm of the gamma function for positive numbers: Stirling's series beyond 10, the recurrence below.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut shift) = (x, 0.0);
    while x < 10.0 {
        shift += x.ln();
        x += 1.0;
    }
    let series = (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / (1260.0 * x * x)) / (x * x)) / x;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - shift
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against `scipy.stats.ttest_ind(a, b, equal_var=False)` and `scipy.special.gammaln`.
    #[test]
    fn p_values_are_those_of_scipy() {
        for (a, b, p) in SCIPY {
            let found = p_value(a, b).unwrap();
            assert!((found - p).abs() < 1e-9, "{a:?} {b:?}: {found} {p}");
        }
        assert!((ln_gamma(0.5) - 0.572_364_942_924_700_1).abs() < 1e-10);
        assert!((ln_gamma(1.5) + 0.120_782_237_635_245_22).abs() < 1e-10);
        assert_eq!(p_value(&[1.0, 1.0], &[1.0, 1.0]), Some(1.0));
        assert_eq!(p_value(&[1.0, 1.0], &[2.0, 2.0]), Some(0.0));
        assert_eq!(p_value(&[1.0], &[2.0, 3.0]), None);
        assert_eq!(p_value(&[1.0, f64::NAN], &[2.0, 3.0]), None);
    }

    const SCIPY: [(&[f64], &[f64], f64); 4] = [
        (&[1.21, 1.19, 1.25], &[1.22, 1.26, 1.2], 0.7089909680458228),
        (
            &[0.5, 0.51, 0.49, 0.52],
            &[0.61, 0.58, 0.66],
            0.03320800336625336,
        ),
        (&[3.0, 1.0], &[2.0, 2.5], 0.8450283873936709),
        (
            &[0.001, 0.0011, 0.0009, 0.00105, 0.00097],
            &[0.00102, 0.0013, 0.00101],
            0.3837287096511484,
        ),
    ];
}
