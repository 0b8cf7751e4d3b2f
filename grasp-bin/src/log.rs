//! The log: one line for each event.

use std::fmt;
use std::io::IsTerminal as _;

use grasp_relay::instance::text::is_control;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use crate::config::{LogFormat, LogSettings};

impl LogSettings {
    /// Starts the log on standard error.
    pub(crate) fn start(&self) {
        let log = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(&self.filter))
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        match self.format {
            LogFormat::Human => log.fmt_fields(fields()).init(),
            LogFormat::Json => log.json().init(),
        }
    }
}

/// Formats fields as `name=value`, with control characters escaped: names of repositories and messages of errors contain
/// text from other parties, which must not start a line or control a terminal.
fn fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    debug_fn(
        |writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
            let text = escape_control(&format!("{value:?}"));
            match field.name() {
                "message" => write!(writer, "{text}"),
                name => write!(writer, "{name}={text}"),
            }
        },
    )
    .delimited(" ")
}

fn escape_control(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut line, c| {
            if is_control(c) {
                line.extend(c.escape_default());
            } else {
                line.push(c);
            }
            line
        })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing::Subscriber;
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Output {
        type Writer = Self;
        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    fn logged(work: impl FnOnce()) -> String {
        let output = Output::default();
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(output.clone());
        let log: Box<dyn Subscriber + Send + Sync> = Box::new(log.fmt_fields(fields()).finish());
        tracing::subscriber::with_default(log, work);
        let bytes = output.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn control_characters_are_escaped() {
        let name =
            "x\n2026-01-01T00:00:00Z ERROR grasp: all is lost\r\u{1b}[2J\u{7}\u{9b}A\u{202e}";
        let line = logged(|| {
            tracing::info!(identifier = %name, error = %name, debug = ?name, name, "all is {name}");
        });
        assert_eq!(line.lines().count(), 1, "{line:?}");
        assert!(
            !line
                .trim_end()
                .chars()
                .any(|c| c.is_control() || c == '\u{202e}'),
            "{line:?}"
        );
        assert!(line.contains(r"identifier=x\n2026"), "{line:?}");
    }

    #[test]
    fn other_text_is_not_changed() {
        let line = logged(|| tracing::info!(count = 3, relay = %"wss://ü.example", "stored"));
        assert!(
            line.trim_end()
                .ends_with("stored count=3 relay=wss://ü.example"),
            "{line:?}"
        );
    }
}
