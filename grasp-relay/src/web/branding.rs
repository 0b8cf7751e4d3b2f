//! What an operator gives the pages: an icon and a colour.

use std::fmt;
use std::str::FromStr;

use maud::{Markup, PreEscaped, html};

/// The largest icon, in bytes.
const MAX_ICON_BYTES: usize = 64 * 1024;

/// The least contrast of a text to its background (WCAG AA).
const MIN_CONTRAST: f64 = 4.5;

/// The backgrounds that links and buttons are seen on, in the light and in the dark scheme, as in the stylesheet.
const BACKGROUNDS: [[Colour; 2]; 2] = [
    [Colour([0xff, 0xff, 0xff]), Colour([0xf3, 0xf5, 0xf7])],
    [Colour([0x0f, 0x13, 0x18]), Colour([0x1a, 0x20, 0x27])],
];

/// The icon and the colour of pages; those of the project where none is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Branding {
    /// The icon.
    pub icon: Option<Icon>,
    /// The colour of links and buttons.
    pub accent: Option<Accent>,
}

impl Branding {
    /// Returns the icon: that of the project, unless there is another.
    pub(crate) fn icon(&self) -> Icon {
        let colour = self
            .accent
            .map_or(Colour([0x0b, 0x57, 0xd0]), |it| it.light);
        self.icon.clone().unwrap_or_else(|| Icon {
            content_type: SVG,
            bytes: format!(
                "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16' fill='none' stroke='{colour}' \
                 stroke-width='1.8'>{BRANCHES}</svg>"
            )
            .into_bytes(),
        })
    }

    /// Returns what the stylesheet has at its end.
    pub(crate) fn style(&self) -> String {
        let Some(Accent { light, dark }) = self.accent else {
            return String::new();
        };
        format!(
            ":root {{ --link: {light}; }}\n\
             @media (prefers-color-scheme: dark) {{ :root {{ --link: {dark}; }} }}\n"
        )
    }
}

const SVG: &str = "image/svg+xml";

/// Returns the icon of the project within a page, in the colour of its links: a branch that joins another one.
pub(crate) fn mark() -> Markup {
    html! {
        svg class="mark" viewBox="0 0 16 16" width="20" height="20" aria-hidden="true" { (PreEscaped(BRANCHES)) }
    }
}

const BRANCHES: &str = "<circle cx='4' cy='3.5' r='2'/><circle cx='4' cy='12.5' r='2'/>\
                        <circle cx='12' cy='6' r='2'/><path d='M4 5.5v5M12 8c0 2.5-4 2-6.5 3.5'/>";

/// A small picture that browsers show beside the title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Icon {
    pub(crate) content_type: &'static str,
    pub(crate) bytes: Vec<u8>,
}

impl Icon {
    /// Takes the content of an SVG or PNG file.
    pub fn new(bytes: Vec<u8>) -> Result<Self, BrandingError> {
        if bytes.len() > MAX_ICON_BYTES {
            return Err(BrandingError::LargeIcon(bytes.len()));
        }
        let text = std::str::from_utf8(&bytes).unwrap_or_default();
        let content_type = match bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            true => "image/png",
            false if text.contains("<svg") => SVG,
            false => return Err(BrandingError::NoIcon),
        };
        Ok(Self {
            content_type,
            bytes,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.content_type {
            SVG => "icon.svg",
            _ => "icon.png",
        }
    }
}

/// The colour of links and buttons, in the light and in the dark scheme. Texts in it can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accent {
    light: Colour,
    dark: Colour,
}

/// Why an icon or a colour cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BrandingError {
    /// The file is neither SVG nor PNG.
    #[error("an icon must be an SVG or PNG file")]
    NoIcon,
    /// The file is too large.
    #[error("an icon may have 64 KiB, and this one has {0} bytes")]
    LargeIcon(usize),
    /// The text is no pair of colours.
    #[error("expected a colour for the light and one for the dark scheme, as in #0b57d0,#8ab4f8")]
    NoColours,
    /// The colour is too similar to the background.
    #[error(
        "the colour {colour} has contrast {contrast:.1} to the {scheme} background; text needs 4.5"
    )]
    LowContrast {
        /// The colour.
        colour: String,
        /// Its contrast.
        contrast: f64,
        /// The scheme.
        scheme: &'static str,
    },
}

impl FromStr for Accent {
    type Err = BrandingError;

    fn from_str(text: &str) -> Result<Self, BrandingError> {
        let (light, dark) = text.split_once(',').ok_or(BrandingError::NoColours)?;
        let accent = Self {
            light: Colour::parse(light.trim()).ok_or(BrandingError::NoColours)?,
            dark: Colour::parse(dark.trim()).ok_or(BrandingError::NoColours)?,
        };
        let [on_light, on_dark] = BACKGROUNDS;
        for (colour, backgrounds, scheme) in [
            (accent.light, on_light, "light"),
            (accent.dark, on_dark, "dark"),
        ] {
            for background in backgrounds {
                let contrast = colour.contrast(background);
                if contrast < MIN_CONTRAST {
                    let colour = colour.to_string();
                    return Err(BrandingError::LowContrast {
                        colour,
                        contrast,
                        scheme,
                    });
                }
            }
        }
        Ok(accent)
    }
}

impl fmt::Display for Accent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.light, self.dark)
    }
}

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Colour([u8; 3]);

impl Colour {
    /// Parses six hex digits after `#`.
    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('#').filter(|digits| digits.len() == 6)?;
        let mut bytes = [0; 3];
        faster_hex::hex_decode(digits.as_bytes(), &mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// Returns the relative luminance (WCAG 2).
    fn luminance(self) -> f64 {
        let [red, green, blue] = self.0.map(linear);
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }

    /// Returns the contrast of two colours, from 1 to 21 (WCAG 2).
    fn contrast(self, other: Self) -> f64 {
        let one = self.luminance();
        let two = other.luminance();
        (one.max(two) + 0.05) / (one.min(two) + 0.05)
    }
}

impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [red, green, blue] = self.0;
        write!(f, "#{red:02x}{green:02x}{blue:02x}")
    }
}

/// Returns the part that a byte of a colour has in its luminance, from 0 to 1.
fn linear(byte: u8) -> f64 {
    match f64::from(byte) / 255.0 {
        value if value <= 0.039_28 => value / 12.92,
        value => ((value + 0.055) / 1.055).powf(2.4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accent_is_two_colours_that_can_be_read() {
        let accent: Accent = "#0B57D0, #8ab4f8".parse().unwrap();
        assert_eq!(accent.to_string(), "#0b57d0,#8ab4f8");
        for none in [
            "",
            "#0b57d0",
            "red,blue",
            "#0b57d0,#8ab4f",
            "#0b57dx,#8ab4f8",
        ] {
            let parsed: Result<Accent, _> = none.parse();
            assert_eq!(parsed, Err(BrandingError::NoColours), "{none}");
        }
        for (low, scheme) in [("#8ab4f8,#8ab4f8", "light"), ("#0b57d0,#0b57d0", "dark")] {
            let error = low.parse::<Accent>().unwrap_err().to_string();
            assert!(error.contains(scheme), "{error}");
        }
        let black = Colour([0; 3]);
        assert!((black.contrast(Colour([255; 3])) - 21.0).abs() < 0.01);
    }

    #[test]
    fn backgrounds_are_those_of_the_stylesheet() {
        let style = include_str!("style.css");
        let [light, dark] = BACKGROUNDS;
        assert_eq!(light.map(|it| it.to_string()), ["#ffffff", "#f3f5f7"]);
        assert!(style.contains("--bg: #fff; --soft: #f3f5f7"));
        let [bg, soft] = dark;
        assert!(style.contains(&format!("--bg: {bg}; --soft: {soft}")));
    }

    #[test]
    fn an_icon_is_a_small_svg_or_png() {
        let icon = |bytes: &[u8]| Icon::new(bytes.to_vec()).map(|icon| icon.name());
        assert_eq!(icon(b"\x89PNG\r\n\x1a\nx"), Ok("icon.png"));
        assert_eq!(icon(b"<?xml version='1.0'?><svg/>"), Ok("icon.svg"));
        assert_eq!(icon(b"<html>"), Err(BrandingError::NoIcon));
        assert_eq!(icon(b"GIF89a\xff"), Err(BrandingError::NoIcon));
        let large = [b"<svg/>".as_slice(), &[b' '; MAX_ICON_BYTES]].concat();
        assert_eq!(icon(&large), Err(BrandingError::LargeIcon(large.len())));
    }

    #[test]
    fn an_accent_colours_the_stylesheet_and_the_icon() {
        let branding = Branding {
            icon: None,
            accent: Some("#7a1fa2,#e1bee7".parse().unwrap()),
        };
        let style = branding.style();
        assert!(style.contains("--link: #7a1fa2;") && style.contains("--link: #e1bee7;"));
        let icon = String::from_utf8(branding.icon().bytes).unwrap();
        assert!(icon.contains("stroke='#7a1fa2'"), "{icon}");
        assert_eq!(Branding::default().style(), "");
    }
}
