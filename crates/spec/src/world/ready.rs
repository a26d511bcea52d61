//! Worlds for a purpose. A job names them with `preset`, a test begins with them.

use super::{Conversion, Domain, Drift, PerFeature, Signal, WorldSpec};

impl WorldSpec {
    /// A world whose click logit is exactly a logistic regression on the ids and dense inputs.
    pub fn linear() -> WorldSpec {
        WorldSpec {
            sparse_count: 8,
            dense_count: 4,
            vocabulary: PerFeature::All(50),
            hidden_groups: 1,
            across_pairs: 0,
            signal: Signal { main: 1.2, inside: 0.0, across: 0.0, dense: 0.6, dense_curve: 0.0, domain: 0.0 },
            ..WorldSpec::default()
        }
    }

    /// A world whose click logit is exactly a factorization machine with `data::world::HIDDEN_RANK` factors.
    pub fn factorization_machine() -> WorldSpec {
        WorldSpec {
            sparse_count: 6,
            vocabulary: PerFeature::All(40),
            signal: Signal { main: 0.8, inside: 1.0, across: 0.0, dense: 0.5, dense_curve: 0.0, domain: 0.0 },
            ..WorldSpec::linear()
        }
    }

    /// A world for tower partitioners: 26 features in 8 hidden groups whose interactions carry most of the
    /// signal, and a few pairs across.
    pub fn planted_groups() -> WorldSpec {
        WorldSpec {
            train_samples: 2_000_000,
            vocabulary: PerFeature::All(200),
            hidden_groups: 8,
            across_pairs: 4,
            signal: Signal { main: 0.5, inside: 1.2, across: 0.2, ..Signal::default() },
            ..WorldSpec::default()
        }
    }

    /// A world for teachers, students and a live stream: three domains, ids that come and go, all three kinds
    /// of drift, inputs that only a teacher sees, conversions.
    pub fn live() -> WorldSpec {
        let domain = |name: &str, share, rate, absent: &[&str]| Domain {
            name: name.into(),
            share,
            click_rate: Some(rate),
            conversion_rate: None,
            absent: absent.iter().map(|&feature| feature.into()).collect(),
        };
        WorldSpec {
            sparse_count: 16,
            dense_count: 8,
            dense_teacher_only: 2,
            vocabulary: PerFeature::All(20_000),
            turnover: PerFeature::All(2.0),
            teacher_only: vec!["sparse_15".into(), "sparse_16".into()],
            click_rate: 0.03,
            hidden_groups: 4,
            drift: Drift { global: 0.2, segment: 0.2, item: 0.3 },
            domains: vec![
                domain("feed", 6.0, 0.03, &[]),
                domain("search", 3.0, 0.05, &["sparse_5", "sparse_6"]),
                domain("video", 1.0, 0.01, &["sparse_2", "sparse_9"]),
            ],
            signal: Signal { domain: 0.3, ..Signal::default() },
            conversion: Some(Conversion::default()),
            ..WorldSpec::default()
        }
    }
}
