// The parts of the page that report.cc puts together: none asks for anything from outside the file.
#pragma once
#include <string>

namespace tutti::events {

extern const char* const report_style;   // CSS, light and dark
extern const char* const report_script;  // draws the data in the element #data (see report.cc)

// Text as it may stand in a page, also in an attribute.
std::string html_escaped(const std::string& text);

}  // namespace tutti::events
