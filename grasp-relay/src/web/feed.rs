//! Atom feeds.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use nostr::types::Timestamp;
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};

/// The content type of a feed.
pub(crate) const ATOM: &str = "application/atom+xml; charset=utf-8";

/// The last second of the year 9999, which is the last one that a feed can name.
const LAST_SECOND: u64 = 253_402_300_799;

/// A feed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Feed {
    /// A name of the feed that never changes.
    pub(crate) id: String,
    pub(crate) title: String,
    /// The page with the same content.
    pub(crate) link: String,
    /// The address of the feed.
    pub(crate) own_link: String,
    /// The newest first.
    pub(crate) entries: Vec<Entry>,
}

/// An entry of a feed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// A name of the entry that never changes.
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) link: String,
    pub(crate) author: String,
    pub(crate) at: Timestamp,
    /// The beginning of its text.
    pub(crate) summary: String,
}

impl Feed {
    /// Returns the feed as XML.
    pub(crate) fn xml(&self) -> String {
        let mut writer = Writer::new(Vec::new());
        // Writing to memory does not fail.
        let written = self.write(&mut writer);
        debug_assert!(written.is_ok());
        String::from_utf8(writer.into_inner()).unwrap_or_default()
    }

    fn write(&self, writer: &mut Writer<Vec<u8>>) -> io::Result<()> {
        writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("utf-8"), None)))?;
        let feed = writer.create_element("feed");
        let feed = feed.with_attribute(("xmlns", "http://www.w3.org/2005/Atom"));
        feed.write_inner_content(|writer| {
            element(writer, "id", &self.id)?;
            element(writer, "title", &self.title)?;
            let newest = self.entries.iter().map(|entry| entry.at).max();
            element(writer, "updated", &date(newest.unwrap_or_default()))?;
            link(writer, "alternate", &self.link)?;
            link(writer, "self", &self.own_link)?;
            for entry in &self.entries {
                let element = writer.create_element("entry");
                element.write_inner_content(|writer| entry.write(writer))?;
            }
            Ok(())
        })?;
        Ok(())
    }
}

impl Entry {
    fn write(&self, writer: &mut Writer<Vec<u8>>) -> io::Result<()> {
        element(writer, "id", &self.id)?;
        element(writer, "title", &self.title)?;
        element(writer, "updated", &date(self.at))?;
        link(writer, "alternate", &self.link)?;
        let author = writer.create_element("author");
        author.write_inner_content(|writer| element(writer, "name", &self.author))?;
        element(writer, "summary", &self.summary)
    }
}

fn element(writer: &mut Writer<Vec<u8>>, name: &str, text: &str) -> io::Result<()> {
    let text = allowed(text);
    let element = writer.create_element(name);
    element.write_text_content(BytesText::new(&text))?;
    Ok(())
}

fn link(writer: &mut Writer<Vec<u8>>, relation: &str, address: &str) -> io::Result<()> {
    let address = allowed(address);
    let link = writer.create_element("link");
    let link = link.with_attribute(("rel", relation));
    link.with_attribute(("href", address.as_str()))
        .write_empty()?;
    Ok(())
}

/// Returns a text without the characters that XML cannot have.
fn allowed(text: &str) -> String {
    let is_allowed = |c: &char| {
        let is_control = c.is_control() && !matches!(c, '\n' | '\t');
        !is_control && !matches!(c, '\u{fffe}' | '\u{ffff}')
    };
    text.chars().filter(is_allowed).collect()
}

/// Formats a date as feeds have it.
pub(crate) fn date(at: Timestamp) -> String {
    let seconds = at.as_secs().min(LAST_SECOND);
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_strangers_is_escaped_and_has_no_characters_that_xml_cannot_have() {
        let feed = Feed {
            title: "a <b> & \u{1}\u{ffff}c".into(),
            link: "https://us.example/?a=\"b\"&c".into(),
            entries: vec![Entry {
                title: "]]><script>".into(),
                at: Timestamp::from_secs(u64::MAX),
                ..Entry::default()
            }],
            ..Feed::default()
        };
        let xml = feed.xml();
        assert!(xml.contains("<title>a &lt;b&gt; &amp; c</title>"), "{xml}");
        assert!(!xml.contains("<script>"), "{xml}");
        assert!(
            xml.contains("<updated>9999-12-31T23:59:59Z</updated>"),
            "{xml}"
        );
        let mut reader = quick_xml::Reader::from_str(&xml);
        loop {
            match reader.read_event().unwrap() {
                Event::Eof => break,
                Event::Start(start) => assert!(start.attributes().all(|it| it.is_ok())),
                _ => {}
            }
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_700_000_000, "2023-11-14"),
            (4_107_542_399, "2100-02-28"),
            (u64::MAX, "9999-12-31"),
        ] {
            let date = date(Timestamp::from_secs(seconds));
            assert_eq!(date.split('T').next(), Some(text));
        }
    }

    #[test]
    fn empty_feed_is_well_formed() {
        let xml = Feed::default().xml();
        assert!(xml.ends_with("</feed>"), "{xml}");
        assert!(
            xml.contains("<updated>1970-01-01T00:00:00Z</updated>"),
            "{xml}"
        );
    }
}
