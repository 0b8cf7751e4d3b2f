//! The strict parser of a push's command list.

use super::packets::{Pkt, read_pkt};
use crate::repo::{Oid, RefName};
use crate::text::{ParseError, invalid};

/// Maximum number of refs in one push.
pub const MAX_COMMANDS: usize = 20_000;

/// Maximum size of the list, in bytes: that of [`MAX_COMMANDS`] refs with usual names.
pub const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;

/// Maximum size of the push options.
const MAX_OPTION_BYTES: usize = 64 * 1024;

/// A change of one ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushCommand {
    /// The current target according to the client; `None` if the ref does not exist.
    pub old: Option<Oid>,
    /// The new target; `None` to delete the ref.
    pub new: Option<Oid>,
    /// Name of the ref.
    pub name: RefName,
}

/// A complete, valid and non-empty command list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushRequest {
    commands: Vec<PushCommand>,
    capabilities: Capabilities,
    /// The client has a shallow clone.
    is_shallow: bool,
}

/// The client's capabilities that this server uses; others are not passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The client expects a report per ref.
    pub report_status: bool,
    /// The client expects a report per ref in version 2.
    pub report_status_v2: bool,
    /// The client accepts progress and report on one stream.
    pub side_band_64k: bool,
    /// Either all refs change or none.
    pub atomic: bool,
    /// Push options follow the command list.
    pub push_options: bool,
}

/// The result of [`CommandReader::feed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The list is incomplete; feed more bytes.
    More,
    /// A single flush packet, with which git tests whether a large push is accepted. Nothing is executed.
    Probe,
    /// The list is complete.
    Complete {
        /// The parsed commands.
        request: PushRequest,
        /// The bytes after the list and its push options: the pack.
        rest: Vec<u8>,
    },
}

/// Reads a command list from chunks as they arrive.
///
/// Memory is bounded by [`MAX_COMMANDS`], [`MAX_LIST_BYTES`] and the longest packet. Push options after the list are
/// skipped: clients pass on their `-o` values and abort if a server does not accept options, but no option has a meaning
/// here. `shallow` lines before the first command name the commits below which the client has no history. They change
/// nothing either: what a push needs is checked to be at the server, whatever the client has.
///
/// ```
/// use grasp_core::push::{CommandReader, Progress};
///
/// let mut reader = CommandReader::default();
/// let line = format!("{} {} refs/heads/main\0report-status", "0".repeat(40), "a".repeat(40));
/// let bytes = format!("{:04x}{line}0000PACK", line.len() + 4);
/// let Ok(Progress::Complete { request, rest }) = reader.feed(bytes.as_bytes()) else { panic!() };
/// assert_eq!(request.commands()[0].name.as_str(), "refs/heads/main");
/// assert_eq!(rest, b"PACK");
/// ```
#[derive(Clone, Debug, Default)]
pub struct CommandReader {
    /// The beginning of a packet that is incomplete.
    buffer: Vec<u8>,
    commands: Vec<PushCommand>,
    /// Bytes of the packets that were parsed, without push options.
    list_bytes: usize,
    capabilities: Capabilities,
    /// A `shallow` line came before the first command.
    is_shallow: bool,
    /// The list has ended, and push options follow.
    in_options: bool,
    option_bytes: usize,
}

impl CommandReader {
    /// Returns the client's capabilities, known after its first command; they also apply to error answers.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Returns the bytes of the list that were read so far.
    pub fn list_bytes(&self) -> usize {
        self.list_bytes.saturating_add(self.buffer.len())
    }

    /// Parses the next bytes of the request.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Progress, ParseError> {
        self.buffer.extend_from_slice(bytes);
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.as_slice();
        while let Some((pkt, after)) = read_pkt(rest)? {
            rest = after;
            let has_options = self.capabilities.push_options && !self.commands.is_empty();
            match pkt {
                Pkt::Data(option) if self.in_options => self.skip_option(option)?,
                Pkt::Data(line) => self.parse_line(line)?,
                Pkt::Flush if has_options && !self.in_options => self.in_options = true,
                Pkt::Flush if self.is_shallow && self.commands.is_empty() => {
                    return invalid("no command follows the shallow lines");
                }
                Pkt::Flush => return self.finish(rest),
                Pkt::Delimiter | Pkt::ResponseEnd => {
                    return invalid("unexpected packet in the command list");
                }
            }
        }
        self.buffer = rest.to_vec();
        Ok(Progress::More)
    }

    fn skip_option(&mut self, option: &[u8]) -> Result<(), ParseError> {
        self.option_bytes += option.len() + 4;
        if self.option_bytes > MAX_OPTION_BYTES {
            invalid("too many push options")
        } else {
            Ok(())
        }
    }

    fn finish(&mut self, rest: &[u8]) -> Result<Progress, ParseError> {
        let commands = std::mem::take(&mut self.commands);
        if commands.is_empty() {
            return Ok(Progress::Probe);
        }
        if let Some(name) = repeated_name(&commands) {
            return invalid(format!("{name} is pushed twice"));
        }
        let request = PushRequest {
            commands,
            capabilities: self.capabilities,
            is_shallow: self.is_shallow,
        };
        Ok(Progress::Complete {
            request,
            rest: rest.to_vec(),
        })
    }

    fn parse_line(&mut self, line: &[u8]) -> Result<(), ParseError> {
        self.list_bytes += line.len() + 4;
        if self.list_bytes > MAX_LIST_BYTES {
            return invalid(format!(
                "the list of refs has more than {MAX_LIST_BYTES} bytes"
            ));
        }
        if let Some(oid) = line.strip_prefix(b"shallow ") {
            return self.parse_shallow(oid);
        }
        if line.starts_with(b"push-cert") {
            return invalid(CERTIFICATE);
        }
        if self.commands.len() == MAX_COMMANDS {
            return invalid(format!("more than {MAX_COMMANDS} refs in one push"));
        }
        let Ok(line) = std::str::from_utf8(line) else {
            return invalid(SHAPE);
        };
        let line = line.strip_suffix('\n').unwrap_or(line);
        let command = match line.split_once('\0') {
            Some((command, capabilities)) if self.commands.is_empty() => {
                self.capabilities = Capabilities::parse(capabilities);
                check_supported(capabilities)?;
                command
            }
            Some(_) => return invalid(SHAPE),
            None => line,
        };
        self.commands.push(PushCommand::parse(command)?);
        Ok(())
    }

    /// Parses the rest of a `shallow` line. Git writes them before the commands.
    fn parse_shallow(&mut self, oid: &[u8]) -> Result<(), ParseError> {
        let oid = std::str::from_utf8(oid).unwrap_or_default();
        let oid = oid.strip_suffix('\n').unwrap_or(oid);
        if !self.commands.is_empty() || !matches!(parse_object(oid), Ok(Some(_))) {
            return invalid(SHALLOW);
        }
        self.is_shallow = true;
        Ok(())
    }
}

/// Returns a name that more than one command has.
fn repeated_name(commands: &[PushCommand]) -> Option<&RefName> {
    let mut names: Vec<&RefName> = commands.iter().map(|command| &command.name).collect();
    names.sort_unstable();
    names
        .windows(2)
        .find(|pair| pair[0] == pair[1])
        .map(|pair| pair[0])
}

const SHAPE: &str = "a command is not of the form <old id> <new id> <ref>";
const SHALLOW: &str = "a shallow line is not of the form shallow <id>, or follows a command";
/// The signed state makes a signed push unnecessary.
const CERTIFICATE: &str = "push certificates are not supported";

impl PushCommand {
    /// Parses `<40 hex> <40 hex> <ref>`.
    fn parse(line: &str) -> Result<Self, ParseError> {
        let mut parts = line.splitn(3, ' ');
        let (Some(old), Some(new), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return invalid(SHAPE);
        };
        Ok(Self {
            old: parse_object(old)?,
            new: parse_object(new)?,
            name: RefName::new(name)?,
        })
    }
}

/// Parses a SHA-1 object id; `None` for zero.
fn parse_object(text: &str) -> Result<Option<Oid>, ParseError> {
    match text.parse() {
        Ok(oid @ Oid::Sha1(_)) => Ok((!oid.is_zero()).then_some(oid)),
        _ => invalid(SHAPE),
    }
}

impl PushRequest {
    /// Returns the commands; at least one, and no ref twice.
    pub fn commands(&self) -> &[PushCommand] {
        &self.commands
    }

    /// Returns the client's capabilities.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Returns whether the client has a shallow clone, so that it may lack history that the server needs.
    pub fn is_shallow(&self) -> bool {
        self.is_shallow
    }
}

impl Capabilities {
    fn parse(text: &str) -> Self {
        let mut capabilities = Self::default();
        for token in text.split_ascii_whitespace() {
            match token {
                "report-status" => capabilities.report_status = true,
                "report-status-v2" => capabilities.report_status_v2 = true,
                "side-band-64k" => capabilities.side_band_64k = true,
                "atomic" => capabilities.atomic = true,
                "push-options" => capabilities.push_options = true,
                _ => {}
            }
        }
        capabilities
    }
}

/// Refuses capabilities that change what a push means.
fn check_supported(capabilities: &str) -> Result<(), ParseError> {
    for token in capabilities.split_ascii_whitespace() {
        if token.starts_with("push-cert") {
            return invalid(CERTIFICATE);
        }
        if token.starts_with("object-format=") && token != "object-format=sha1" {
            return invalid("only object format sha1 is supported");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::encode_pkt;

    const NONE: &str = "0000000000000000000000000000000000000000";
    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn list(lines: &[String]) -> Vec<u8> {
        let mut bytes = Vec::new();
        lines
            .iter()
            .for_each(|line| encode_pkt(line.as_bytes(), &mut bytes));
        bytes.extend_from_slice(b"0000");
        bytes
    }

    fn parse(lines: &[String]) -> Result<PushRequest, ParseError> {
        match CommandReader::default().feed(&list(lines))? {
            Progress::Complete { request, .. } => Ok(request),
            other => panic!("{other:?}"),
        }
    }

    fn create(name: &str) -> String {
        format!("{NONE} {A} {name}")
    }

    #[test]
    fn reads_commands_and_capabilities() {
        let first = format!("{}\0 report-status atomic agent=x", create("refs/heads/a"));
        let request = parse(&[first, format!("{A} {NONE} refs/heads/b\n")]).unwrap();
        let [a, b] = request.commands() else { panic!() };
        assert_eq!((a.old, a.new), (None, Some(A.parse().unwrap())));
        assert_eq!((b.old, b.new), (Some(A.parse().unwrap()), None));
        let capabilities = request.capabilities();
        assert!(capabilities.atomic && capabilities.report_status && !capabilities.side_band_64k);
    }

    #[test]
    fn a_shallow_clone_is_told_by_lines_before_the_commands() {
        let shallow = [
            format!("shallow {A}"),
            format!("shallow {A}\n"),
            create("refs/heads/a"),
        ];
        let request = parse(&shallow).unwrap();
        assert!(request.is_shallow() && request.commands().len() == 1);
        assert!(!parse(&shallow[2..]).unwrap().is_shallow());
    }

    #[test]
    fn accepts_bytes_one_at_a_time() {
        let bytes = list(&[create("refs/heads/a"), create("refs/heads/b")]);
        let mut reader = CommandReader::default();
        let (last, most) = bytes.split_last().unwrap();
        for byte in most {
            assert_eq!(reader.feed(&[*byte]), Ok(Progress::More));
        }
        let Ok(Progress::Complete { request, rest }) = reader.feed(&[*last]) else {
            panic!()
        };
        assert_eq!((request.commands().len(), rest.len()), (2, 0));
    }

    #[test]
    fn a_single_flush_is_a_probe() {
        assert_eq!(CommandReader::default().feed(b"0000"), Ok(Progress::Probe));
    }

    #[test]
    fn refuses_malformed_lists() {
        let good = create("refs/heads/a");
        let cases = [
            (vec![String::new()], SHAPE),
            (vec![format!("{A} {A}")], SHAPE),
            (vec![format!("{A}  {A} refs/heads/a")], SHAPE),
            (vec![format!("{A} {} refs/heads/a", "a".repeat(64))], SHAPE),
            (
                vec![good.clone(), format!("{}\0atomic", create("refs/heads/b"))],
                SHAPE,
            ),
            (vec![create("main")], "a ref name does not begin with refs/"),
            (
                vec![create("refs/heads/a b")],
                "a ref name contains a character that git allows in no ref",
            ),
            (
                vec![good.clone(), good.clone()],
                "refs/heads/a is pushed twice",
            ),
            (
                vec![format!("shallow {A}")],
                "no command follows the shallow lines",
            ),
            (vec![format!("shallow {}", &A[1..]), good.clone()], SHALLOW),
            (vec![format!("shallow {NONE}"), good.clone()], SHALLOW),
            (vec![good.clone(), format!("shallow {A}")], SHALLOW),
            (vec![String::from("push-cert\0x")], CERTIFICATE),
            (vec![format!("{good}\0push-cert=x")], CERTIFICATE),
            (
                vec![format!("{good}\0object-format=sha256")],
                "only object format sha1 is supported",
            ),
        ];
        for (lines, why) in cases {
            assert_eq!(parse(&lines), invalid(why), "{lines:?}");
        }
        let unexpected = invalid("unexpected packet in the command list");
        assert_eq!(CommandReader::default().feed(b"0001"), unexpected);
    }

    #[test]
    fn knows_in_what_form_the_client_reads_a_refusal() {
        let first = |more: &str| format!("{}\0side-band-64k {more}", create("refs/heads/a"));
        let cases = [
            (vec![first(""), format!("shallow {A}")], SHALLOW),
            (vec![first("push-cert=x")], CERTIFICATE),
            (
                vec![first("object-format=sha256")],
                "only object format sha1 is supported",
            ),
        ];
        for (lines, why) in cases {
            let mut reader = CommandReader::default();
            assert_eq!(reader.feed(&list(&lines)), invalid(why));
            assert!(reader.capabilities().side_band_64k, "{why}");
        }
    }

    #[test]
    fn skips_options_in_any_pieces() {
        let mut bytes = list(&[format!("{}\0push-options", create("refs/heads/a"))]);
        encode_pkt(b"ci.skip", &mut bytes);
        encode_pkt(b"x=y", &mut bytes);
        bytes.extend_from_slice(b"0000PACK");
        let whole = CommandReader::default().feed(&bytes);
        assert!(matches!(&whole, Ok(Progress::Complete { rest, .. }) if rest == b"PACK"));
        for at in 0..bytes.len() - 4 {
            let (first, second) = bytes.split_at(at);
            let mut reader = CommandReader::default();
            assert_eq!(reader.feed(first), Ok(Progress::More));
            assert_eq!(reader.feed(second), whole, "{at}");
        }
    }

    #[test]
    fn refuses_too_many_options() {
        let bytes = list(&[format!("{}\0push-options", create("refs/heads/a"))]);
        let mut reader = CommandReader::default();
        assert_eq!(reader.feed(&bytes), Ok(Progress::More));
        let mut packet = Vec::new();
        encode_pkt(&[b'x'; 60_000], &mut packet);
        assert_eq!(reader.feed(&packet), Ok(Progress::More));
        assert_eq!(reader.feed(&packet), invalid("too many push options"));
    }

    #[test]
    fn the_number_of_refs_is_bounded() {
        let lines: Vec<_> = (0..=MAX_COMMANDS)
            .map(|n| create(&format!("refs/heads/{n}")))
            .collect();
        assert_eq!(
            parse(&lines[..MAX_COMMANDS]).unwrap().commands().len(),
            MAX_COMMANDS
        );
        assert_eq!(parse(&lines), invalid("more than 20000 refs in one push"));
    }

    #[test]
    fn the_bytes_of_the_list_are_bounded_and_known_while_it_is_read() {
        let (mut reader, mut fed, mut refused) = (CommandReader::default(), 0, None);
        for n in 0..MAX_COMMANDS {
            let mut packet = Vec::new();
            let name = format!(
                "refs/heads/{n}{}",
                format!("/{}", "x".repeat(200)).repeat(4)
            );
            encode_pkt(create(&name).as_bytes(), &mut packet);
            match reader.feed(&packet) {
                Ok(progress) => assert_eq!(progress, Progress::More),
                Err(error) => {
                    refused = Some(error.to_string());
                    break;
                }
            }
            fed += packet.len();
            assert_eq!(reader.list_bytes(), fed);
        }
        assert!(
            fed <= MAX_LIST_BYTES && fed > MAX_LIST_BYTES - 1_024,
            "{fed}"
        );
        assert_eq!(
            refused.as_deref(),
            Some("the list of refs has more than 4194304 bytes")
        );
    }

    #[test]
    fn shallow_lines_count_as_well() {
        let mut packets = Vec::new();
        for _ in 0..MAX_LIST_BYTES / 52 {
            encode_pkt(format!("shallow {A}").as_bytes(), &mut packets);
        }
        let mut reader = CommandReader::default();
        assert_eq!(reader.feed(&packets), Ok(Progress::More));
        assert!(reader.feed(&packets).is_err());
    }
}
