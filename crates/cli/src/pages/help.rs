//! `zpool help WORD` and `zfs help WORD`: the page of a verb or a topic, through man(1) on a terminal.

use std::io::Write;
use std::process::{Command, Stdio};

use clikit::unsupported_usage;

use super::man::{NOT_YET, Page, of_form, of_verb};
use super::topics;
use crate::command::command as tree_of;

/// The text on a verb or a topic of a command; empty if man(1) has shown it, `None` if neither exists.
#[doc(alias("zpool_do_help", "zfs_do_help"))]
pub fn help(command: &str, word: &str, is_terminal: bool) -> Option<String> {
    let mut tree = tree_of(command);
    tree.build();
    let (page, text) = if word == command {
        return Some(tree.render_long_help().to_string());
    } else if let Some(topic) = topics::find(command, word) {
        (topic.page(), topic.text())
    } else if let Some(verb) = tree.find_subcommand_mut(word) {
        let full = format!("{command} {}", verb.get_name());
        let text = verb.clone().bin_name(full).render_long_help().to_string();
        (of_verb(command, verb), text)
    } else {
        let form = unsupported_usage::described(command, word)?;
        (of_form(&form), format!("Usage: {command} {} {}\n\n{NOT_YET}\n", form.verb, form.usage))
    };
    let shown = is_terminal && page.is_ok_and(|page| show(&page));
    Some(if shown { String::new() } else { text })
}

/// Shows a page with man(1); `false` if man(1) is missing.
fn show(page: &Page) -> bool {
    let Ok(mut man) =
        Command::new("man").args(["-l", "-"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn()
    else {
        return false;
    };
    let written = man.stdin.take().is_some_and(|mut pipe| pipe.write_all(&page.text).is_ok());
    man.wait().is_ok_and(|status| status.success()) && written
}
