//! Words that users and disks may say: whatever they are, an answer and no panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use proptest::prelude::*;
use zcommon::draid::DraidConfig;
use zcommon::names::{ZfsName, check_component, check_new_pool};
use zcommon::props::{PropName, ZfsProp};
use zcommon::units::{Ratio, nicebytes, nicenum, nicetime, parse_nicenum};

proptest! {
    #[test]
    fn any_word_gets_an_answer(word in ".{0,40}") {
        let _ = (parse_nicenum(&word), PropName::parse(&word), word.parse::<DraidConfig>(), check_component(&word));
        let _ = (check_new_pool(&word), word.parse::<ZfsName>());
    }

    #[test]
    fn near_misses_get_an_answer(number in "[0-9.eE+-]{0,24}[bBkKiIgGzZ]{0,3}", draid in "draid[0-9]{0,3}(:[0-9]{0,21}[dcs]){0,4}") {
        let _ = parse_nicenum(&number);
        if let Ok(config) = draid.parse::<DraidConfig>() {
            prop_assert_eq!(config.to_string().parse(), Ok(config));
            prop_assert!(config.groups().is_some());
        }
    }

    #[test]
    fn nice_numbers_fit_their_columns(n in any::<u64>(), shift in 0u32..64) {
        let n = n >> shift;
        prop_assert!(nicenum(n).to_string().len() <= 5 && nicebytes(n).to_string().len() <= 5);
        let _ = (nicetime(n).to_string(), Ratio(n).to_string());
        // Reading back is right to the last digit that is shown.
        let back = parse_nicenum(&nicenum(n).to_string()).unwrap_or(u64::MAX);
        prop_assert!(back.abs_diff(n) as f64 <= n as f64 * 0.05, "{} {}", n, back);
    }

    #[test]
    fn names_that_parse_come_back(name in "[a-c%]{1,3}(/[a-c.]{1,3}){0,3}([@#][a-c]{1,3})?") {
        if let Ok(parsed) = name.parse::<ZfsName>() {
            prop_assert_eq!(parsed.as_str(), &name);
            prop_assert!(name.starts_with(parsed.dataset()) && parsed.dataset().starts_with(parsed.pool()));
        }
    }

    #[test]
    fn every_word_stands_for_its_number(at in 0..ZfsProp::ALL.len()) {
        let info = ZfsProp::ALL[at].info();
        for &(word, number) in info.index {
            prop_assert_eq!(info.number_of(word), Some(number));
            prop_assert!(info.word(number).is_some());
        }
    }
}
