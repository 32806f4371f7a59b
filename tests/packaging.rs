//! The files in `packaging/` and `docs/ten-machines.md` fit the program: their command lines exist, systemd reads the
//! units, and `packaging/install` installs and uninstalls.
//!
//! What exists is what the table of commands in `docs/cli.md` says; a test of the binary compares that table with the
//! parser. So nothing is built for this.

use onefold_tests::installed;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Options of many commands, which the table does not repeat. They must stand somewhere in `docs/cli.md`.
const COMMON: [&str; 8] = ["--store", "--repository", "--json", "--wait", "--help", "--yes", "--secret-file", "--server-fingerprint"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the pieces of a text between backticks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase()) && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
}

fn options(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| c.is_whitespace() || "`,;()|=".contains(c));
    words.filter(|word| word.len() > 2 && word.starts_with("--")).map(str::to_owned)
}

/// The commands of `docs/cli.md`, `volume list` or `backup`, with their options.
struct Documented {
    commands: BTreeMap<String, BTreeSet<String>>,
    everywhere: BTreeSet<String>,
}

impl Documented {
    fn read() -> Documented {
        let text = read("docs/cli.md");
        let table = text.split("\n| command | does |\n").nth(1).expect("the table of commands");
        let mut commands: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for row in table.lines().skip(1).take_while(|line| line.starts_with('|')) {
            // A `|` in code is written as `\|`.
            let first = row.replace("\\|", " ").split('|').nth(1).unwrap().to_owned();
            let mut group = None;
            for span in spans(&first) {
                let mut words = span.split_whitespace();
                let (name, second) = (words.next().unwrap(), words.next().filter(|word| is_word(word)));
                let command = match (second, group) {
                    (Some(second), _) => format!("{name} {second}"),
                    // `append-only on`, `off`, `status`
                    (None, Some(group)) if span == name => format!("{group} {name}"),
                    (None, _) => name.to_owned(),
                };
                group = command.split_once(' ').map(|(group, _)| group.to_owned());
                commands.entry(command).or_default().extend(options(row));
            }
        }
        assert!(commands.len() > 30, "the table is not read as it should be: {:?}", commands.keys());
        Documented { commands, everywhere: options(&text).collect() }
    }

    /// Returns what is wrong with the words after `onefold`.
    fn judge(&self, words: &[&str]) -> Option<String> {
        let pair = words.get(1).map(|second| format!("{} {second}", words[0]));
        let command = pair.filter(|pair| self.commands.contains_key(pair)).unwrap_or_else(|| words[0].to_owned());
        let Some(known) = self.commands.get(&command) else {
            return Some(format!("there is no command `{command}`"));
        };
        let given = words.iter().take_while(|word| **word != "--").flat_map(|word| options(word));
        let is_known = |option: &String| {
            let is_common = COMMON.contains(&option.as_str()) && self.everywhere.contains(option);
            known.contains(option) || is_common
        };
        given.into_iter().find(|option| !is_known(option)).map(|option| format!("`{command}` has no option {option}"))
    }
}

/// Returns the command lines of onefold in a piece of shell: the words after `onefold`.
fn command_lines(text: &str) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    for command in text.split(['|', ';', '&', '`', '<', '>', '(', ')', '\n']) {
        let is_blank = |c: char| c.is_whitespace() || "'\"".contains(c);
        let words: Vec<&str> = command.split(is_blank).filter(|word| !word.is_empty()).collect();
        let is_program = |word: &str| word == "onefold" || word.ends_with("/bin/onefold");
        // `runuser -u onefold -- onefold init`: the user is not the program.
        let at =
            (0..words.len()).find(|&at| is_program(words[at]) && (at == 0 || words[at - 1] == "--" || !words[at - 1].starts_with('-')));
        if let Some(at) = at
            && words.get(at + 1).is_some_and(|word| is_word(word))
        {
            let end = words.iter().position(|word| word.starts_with('#')).filter(|end| *end > at).unwrap_or(words.len());
            found.push(words[at + 1..end].to_vec());
        }
    }
    found
}

/// Returns the shell in a document: its fenced code and its code in lines. Continued lines are joined.
fn shell_of_document(text: &str) -> String {
    let mut shell = String::new();
    for (at, part) in text.split("```").enumerate() {
        if at % 2 == 1 {
            shell.push_str(part);
        } else {
            spans(part).for_each(|span| shell.extend([&span.replace('\n', " "), "\n"]));
        }
    }
    shell.replace("\\\n", " ")
}

/// Returns the shell in a unit, a settings file or a script: every line but comments, of which only code in backticks.
fn shell_of_file(text: &str) -> String {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(|line| if line.starts_with('#') { spans(line).collect::<Vec<_>>().join("\n") } else { line.to_owned() });
    lines.collect::<Vec<_>>().join("\n")
}

fn files_in(directory: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_command_line_is_one_of_the_program() {
    let documented = Documented::read();
    let mut shell: Vec<(PathBuf, String)> = ["docs/ten-machines.md", "packaging/README.md", "README.md"]
        .iter()
        .map(|document| (PathBuf::from(document), shell_of_document(&read(document))))
        .collect();
    let files = ["packaging/systemd", "packaging/etc"].map(files_in).concat();
    shell.extend(files.into_iter().chain([root().join("packaging/install")]).map(|path| (path.clone(), shell_of_file(&read(path)))));
    let (mut lines, mut wrong) = (0, Vec::new());
    for (path, text) in &shell {
        for words in command_lines(text) {
            lines += 1;
            wrong.extend(documented.judge(&words).map(|why| format!("{}: onefold {}: {why}", path.display(), words.join(" "))));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(lines > 60, "only {lines} command lines were found");
}

#[test]
fn options_in_variables_are_options_of_their_commands() {
    let documented = Documented::read();
    for (file, variable, command) in [
        ("serve.env.example", "ONEFOLD_SERVE", "serve"),
        ("serve.env.example", "ONEFOLD_KEEP", "forget"),
        ("serve.env.example", "ONEFOLD_SCRUB", "scrub"),
        ("backup.env.example", "ONEFOLD_CONNECTION", "backup"),
        ("backup.env.example", "ONEFOLD_OPTIONS", "backup"),
    ] {
        let text = read(Path::new("packaging/etc").join(file));
        let value = text.lines().find_map(|line| line.strip_prefix(variable)?.strip_prefix("=\"")?.strip_suffix('"'));
        let value = value.unwrap_or_else(|| panic!("{file} does not set {variable}"));
        let words: Vec<&str> = [command].into_iter().chain(value.split_whitespace()).collect();
        assert_eq!(documented.judge(&words), None, "{file}: {variable}");
    }
}

#[test]
fn every_variable_of_a_unit_is_in_its_settings() {
    for (unit, settings) in [("serve", "serve"), ("maintain", "serve"), ("backup", "backup")] {
        let settings = read(format!("packaging/etc/{settings}.env.example"));
        let unit = read(format!("packaging/systemd/onefold-{unit}.service"));
        for variable in unit.split('$').skip(1).map(|rest| rest.trim_start_matches('{')).filter(|rest| rest.starts_with("ONEFOLD_")) {
            let end = variable.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(variable.len());
            assert!(settings.lines().any(|line| line.starts_with(&format!("{}=", &variable[..end]))), "{}", &variable[..end]);
        }
    }
}

#[test]
fn a_wrong_command_line_is_found() {
    let documented = Documented::read();
    for (line, why) in [
        ("onefold forget --keep-fortnightly 3", Some("--keep-fortnightly")),
        ("sudo onefold bakcup --name x /", Some("bakcup")),
        ("onefold account lock web1 --quota 1TiB", Some("--quota")),
        ("ssh root@server 'onefold account create web1 --quota 1TiB' > secret", None),
        ("/usr/local/bin/onefold append-only status --json", None),
        ("runuser -u onefold -- onefold init /srv/store", None),
    ] {
        let found = command_lines(line);
        assert_eq!(found.len(), 1, "{line}: {found:?}");
        let said = documented.judge(&found[0]);
        assert_eq!(said.is_some(), why.is_some(), "{line}: {said:?}");
        assert!(why.is_none_or(|why| said.unwrap().contains(why)), "{line}");
    }
}

#[test]
fn systemd_reads_the_units() {
    if !installed(&["systemd-analyze"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let units: Vec<PathBuf> = files_in("packaging/systemd")
        .into_iter()
        .map(|unit| {
            let copy = directory.path().join(unit.file_name().unwrap());
            // It looks whether the program is there.
            fs::write(&copy, read(&unit).replace("/usr/local/bin/onefold", "/bin/true")).unwrap();
            copy
        })
        .collect();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // An unknown key is only a warning. Units of this machine may have their own.
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("onefold-")).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}

/// A machine that is a directory.
struct Machine {
    directory: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("program"), "the program").unwrap();
        Machine { directory }
    }

    /// A name with a space: quotes that are missing in the script would be found.
    fn root(&self) -> PathBuf {
        self.directory.path().join("its root")
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    fn install(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(root().join("packaging/install"));
        command.args(arguments).arg("--binary").arg(self.directory.path().join("program"));
        command.env("DESTDIR", self.root()).env_remove("PREFIX").output().unwrap()
    }

    fn installs(&self, arguments: &[&str]) -> String {
        let output = self.install(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the paths of all files, with their contents.
    fn files(&self) -> BTreeMap<PathBuf, String> {
        fn look(directory: &Path, found: &mut BTreeMap<PathBuf, String>) {
            for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    look(&path, found);
                } else {
                    found.insert(path.clone(), fs::read_to_string(&path).unwrap());
                }
            }
        }
        let mut found = BTreeMap::new();
        look(&self.root(), &mut found);
        found
    }
}

#[test]
fn install_installs_twice_alike_and_uninstalls_everything() {
    let machine = Machine::new();
    let said = machine.installs(&["--server", "--client"]);
    assert!(said.contains("onefold init") && said.contains("/etc/onefold/secret"), "{said}");
    let program = machine.path("usr/local/bin/onefold");
    assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
    for unit in files_in("packaging/systemd") {
        let installed = machine.path("usr/local/lib/systemd/system").join(unit.file_name().unwrap());
        assert_eq!(fs::read_to_string(installed).unwrap(), read(&unit));
    }
    let first = machine.files();
    machine.installs(&["--server", "--client"]);
    assert_eq!(machine.files(), first);
    machine.installs(&["--uninstall"]);
    assert_eq!(machine.files(), BTreeMap::new());
    assert!(machine.installs(&["--uninstall"]).contains("nothing is installed"));
}

#[test]
fn a_client_gets_nothing_of_the_server() {
    let machine = Machine::new();
    machine.installs(&["--client"]);
    let named = |part: &str| machine.files().keys().filter(|path| path.to_str().unwrap().contains(part)).count();
    assert_eq!((named("serve"), named("maintain"), named("sysusers"), named("onefold-backup")), (0, 0, 0, 2));
}

#[test]
fn changed_settings_survive_installing_and_uninstalling() {
    let machine = Machine::new();
    machine.installs(&["--client"]);
    let settings = machine.path("etc/onefold/backup.env");
    fs::write(&settings, "ONEFOLD_NAME=mine\n").unwrap();
    fs::write(machine.path("etc/onefold/secret"), "secret").unwrap();
    machine.installs(&["--client"]);
    machine.installs(&["--uninstall"]);
    let left: Vec<PathBuf> = machine.files().into_keys().collect();
    assert_eq!(left, [settings.clone(), machine.path("etc/onefold/secret")]);
    assert_eq!(fs::read_to_string(settings).unwrap(), "ONEFOLD_NAME=mine\n");
}

#[test]
fn a_changed_unit_stops_an_installation_before_anything_is_changed() {
    let machine = Machine::new();
    machine.installs(&["--client"]);
    let timer = machine.path("usr/local/lib/systemd/system/onefold-backup.timer");
    fs::write(&timer, "[Timer]\nOnCalendar=hourly\n").unwrap();
    let before = machine.files();
    let output = machine.install(&["--client", "--server"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("onefold-backup.timer") && said.contains("drop-in"), "{said}");
    assert_eq!(machine.files(), before);
}

#[test]
fn wrong_usage_of_install_is_refused() {
    let machine = Machine::new();
    for arguments in [&[][..], &["--sever"], &["--uninstall", "--client"]] {
        assert_eq!(machine.install(arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert!(!machine.root().exists());
}
