//! What a person sees while a command runs: a bar in a terminal, a line now and then elsewhere.
//!
//! Progress goes to standard error, so that standard output holds results only. In a pipe or a CI log a line
//! comes at most every [`LINE_SECONDS`], so that a long run does not fill the log.

use std::{io::IsTerminal, time::Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Seconds between two lines where there is no terminal.
const LINE_SECONDS: f64 = 10.0;

/// Seconds between two updates of the numbers beside a bar.
const MESSAGE_SECONDS: f64 = 0.25;

/// Progress of one long task.
pub struct Progress {
    look: Look,
    last: Option<Instant>,
}

enum Look {
    Bar(ProgressBar),
    Lines { task: String },
    Quiet,
}

impl Progress {
    /// Starts to show `task`, which has `total` units; `u64::MAX` when it has no end.
    pub fn new(task: &str, total: u64, quiet: bool) -> Progress {
        let look = if quiet {
            Look::Quiet
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
            let style = ProgressStyle::with_template(match total {
                u64::MAX => "{prefix:>8} step {pos}  {wide_msg}",
                _ => "{prefix:>8} {bar:28} {percent:>3}%  {wide_msg}",
            });
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━━╌"));
            bar.set_prefix(task.to_owned());
            Look::Bar(bar)
        } else {
            Look::Lines { task: task.to_owned() }
        };
        Progress { look, last: None }
    }

    /// Says how far it is; `message` is made only when it will be shown.
    pub fn update(&mut self, done: u64, total: u64, message: impl FnOnce() -> String) {
        let pause = match self.look {
            Look::Quiet => return,
            Look::Bar(_) => MESSAGE_SECONDS,
            Look::Lines { .. } => LINE_SECONDS,
        };
        let due = self.last.is_none_or(|last| last.elapsed().as_secs_f64() >= pause) || done >= total;
        if let Look::Bar(bar) = &self.look {
            bar.set_length(total);
            bar.set_position(done);
        }
        if !due {
            return;
        }
        self.last = Some(Instant::now());
        match &self.look {
            Look::Bar(bar) => bar.set_message(message()),
            Look::Lines { task } if total == u64::MAX => eprintln!("{task} step {done}  {}", message()),
            Look::Lines { task } => {
                eprintln!("{task} {:.0} %  {}", 100.0 * done as f64 / total.max(1) as f64, message())
            }
            Look::Quiet => {}
        }
    }

    /// Prints a line without disturbing the bar.
    pub fn line(&self, text: &str) {
        match &self.look {
            Look::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
            Look::Lines { .. } => eprintln!("{text}"),
            Look::Quiet => {}
        }
    }

    /// Ends the bar; it stays on the screen as it was.
    pub fn end(&mut self) {
        if let Look::Bar(bar) = &self.look {
            bar.finish();
        }
        self.look = Look::Quiet;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Look::Bar(bar) = &self.look {
            bar.abandon();
        }
    }
}
