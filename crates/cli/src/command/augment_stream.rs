//! `campanile augment-stream`: a teacher's word on every impression.

use anyhow::Result;
use campanile_live::augment::{AugmentOptions, Augmenter};
use campanile_stream::{
    stage::Wiring,
    topics::{IMPRESSIONS, WORDS},
};
use campanile_tables::Registry;
use serde_json::json;

use crate::{
    args::live::AugmentStreamArguments,
    command::write_report,
    format,
    stage::{self, Stretch, place},
};

/// Runs the command.
pub fn run(arguments: &AugmentStreamArguments) -> Result<()> {
    let options = AugmentOptions {
        registry: Registry::new(&arguments.registry),
        model: arguments.model.clone(),
        window_ms: arguments.window.ms,
        remember_ms: arguments.remember.ms,
    };
    // A name that cannot be is told at once, not when the first impression comes.
    options.registry.current(&options.model)?;
    let stop = stage::stop(&arguments.ending)?;
    let stretch = Stretch { log: &arguments.log, wiring: wiring(), stop: &stop, quiet: arguments.quiet };
    let ready = |_: &Augmenter| match options.registry.current(&options.model) {
        Ok(Some(_)) => Ok(()),
        _ => Err(format!(
            "no version of `{}` is published in {} yet",
            options.model,
            options.registry.root().display()
        )),
    };
    let stage = stage::run(&stretch, |log| Ok(Augmenter::new(log, options.clone())), ready, line)?;
    let counts = stage.counts();
    if !arguments.quiet {
        println!("{}", line(&stage));
    }
    let report = json!({
        "command": "augment-stream",
        "model": options.model,
        "version": stage.version(),
        "versions": counts.versions,
        "words": counts.words,
        "repeated": counts.repeated,
        "too_old": counts.too_old,
    });
    write_report(arguments.report.as_deref(), &report)
}

/// What the augmentation reads and writes.
pub fn wiring() -> Wiring {
    Wiring {
        name: "augment".to_owned(),
        inputs: vec![place(IMPRESSIONS)],
        outputs: vec![place(WORDS)],
        limit: stage::TURN,
        save_every: stage::SAVE_EVERY,
    }
}

fn line(stage: &Augmenter) -> String {
    let counts = stage.counts();
    let version = stage.version().map_or_else(|| "none".to_owned(), |version| version.to_string());
    format!(
        "{} words, version {version}; {} repeated, {} passed over",
        format::count(counts.words),
        format::count(counts.repeated),
        format::count(counts.too_old)
    )
}
