//! Figures beside what is wanted of them.

#![allow(dead_code, reason = "each bench uses its part")]

use std::process::ExitCode;
use std::time::Duration;

/// Prints figures and remembers whether any missed what is wanted.
#[derive(Default)]
pub(crate) struct Report {
    missed: usize,
}

impl Report {
    pub(crate) fn time(&mut self, what: &str, took: Duration, wanted: Option<Duration>) {
        let met = wanted.map(|most| (took <= most, format!("<= {most:?}")));
        self.line(what, &format!("{took:.2?}"), met);
    }

    pub(crate) fn bytes(&mut self, what: &str, held: usize, wanted: Option<usize>) {
        let mb = |bytes: usize| format!("{:.2} MB", bytes as f64 / 1e6);
        let met = wanted.map(|most| (held <= most, format!("<= {}", mb(most))));
        self.line(what, &mb(held), met);
    }

    pub(crate) fn rate(&mut self, what: &str, values: usize, took: Duration, wanted: Option<f64>) {
        let rate = values as f64 / took.as_secs_f64() / 1e6;
        let met = wanted.map(|least| (rate >= least, format!(">= {least} M values/s")));
        self.line(what, &format!("{rate:.2} M values/s"), met);
    }

    pub(crate) fn verdict(self) -> ExitCode {
        println!("{} missed", self.missed);
        ExitCode::from(u8::from(self.missed > 0))
    }

    fn line(&mut self, what: &str, figure: &str, wanted: Option<(bool, String)>) {
        let verdict = match wanted {
            None => String::new(),
            Some((true, wanted)) => format!("wanted {wanted}: met"),
            Some((false, wanted)) => {
                self.missed += 1;
                format!("wanted {wanted}: MISSED")
            }
        };
        println!("  {what:<44} {figure:>20}  {verdict}");
    }
}
