//! A peer's words, made safe to keep.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a peer said, short and harmless enough for a log line or a status page.
///
/// At most [`PeerText::MAX_CHARS`] characters; characters that control a terminal, break a line or
/// turn the direction of writing are replaced. It is never a metric label and never decides
/// anything: see [`Refusal`](super::Refusal) for that.
///
/// ```
/// use grasp_core::limits::PeerText;
///
/// let text = PeerText::new("blocked:\n\u{1b}[31mno");
/// assert_eq!(text.as_str(), "blocked:\u{fffd}\u{fffd}[31mno");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct PeerText(String);

impl PeerText {
    /// The longest text kept, in characters.
    pub const MAX_CHARS: usize = 200;

    /// Cuts and cleans what a peer said; a cut text ends in an ellipsis.
    pub fn new(text: &str) -> Self {
        let mut chars = text.chars();
        let mut kept: String = chars.by_ref().take(Self::MAX_CHARS).map(harmless).collect();
        if chars.next().is_some() {
            kept.pop();
            kept.push('…');
        }
        Self(kept)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What was kept may have been edited since; it is cleaned again on its way in.
impl From<String> for PeerText {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

impl fmt::Display for PeerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn harmless(c: char) -> char {
    let is_invisible = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}');
    if c.is_control() || is_invisible { char::REPLACEMENT_CHARACTER } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_words_of_any_script_are_kept() {
        let text = "restricted: nur für Mitglieder 会员 🦀";
        assert_eq!(PeerText::new(text).as_str(), text);
    }

    #[test]
    fn a_long_text_is_cut_with_an_ellipsis() {
        let text = PeerText::new(&"é".repeat(10_000));
        assert_eq!(text.as_str().chars().count(), PeerText::MAX_CHARS);
        assert!(text.as_str().ends_with("é…"));
    }

    #[test]
    fn a_text_of_just_the_length_is_whole() {
        let text = "x".repeat(PeerText::MAX_CHARS);
        assert_eq!(PeerText::new(&text).as_str(), text);
    }

    #[test]
    fn nothing_breaks_a_line_or_reverses_it() {
        for bad in ["\r", "\n", "\0", "\u{7f}", "\u{85}", "\u{2028}", "\u{202e}"] {
            assert_eq!(PeerText::new(bad).as_str(), "\u{fffd}", "{bad:?}");
        }
    }

    #[test]
    fn what_comes_from_disk_is_cleaned_again() {
        let text: PeerText = serde_json::from_str(r#""a\nb""#).unwrap();
        assert_eq!(text, PeerText::new("a\nb"));
    }
}
