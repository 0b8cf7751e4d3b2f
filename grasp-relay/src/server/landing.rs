//! The page that a browser sees.

/// The page, with a name that cannot become markup.
pub(super) fn page(name: &str) -> String {
    let name = escape(name);
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{name}</title>\n\
         <h1>{name}</h1>\n<p>This is a nostr relay and git host (GRASP). \
         Point a nostr client at this address.</p>\n</html>\n"
    )
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_become_markup() {
        let page = page("<script>\"&'");
        assert!(!page.contains("<script>"));
        assert!(page.contains("&lt;script&gt;&quot;&amp;&#39;"));
    }
}
